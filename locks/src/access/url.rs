//! The address of a server that exists already: `HOST:PORT`, or a URL with credentials.
//!
//! No message repeats the text, because a misspelled URL can have its password at any place.

use percent_encoding::percent_decode_str;
use url::{Host, Url};

use super::{Access, Secret, Tls};

/// The schemes of a kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schemes {
    /// The schemes without TLS. The first is that of `HOST:PORT`.
    pub plain: &'static [&'static str],
    /// The schemes with TLS. If there are none, `sslmode=verify-full` asks for TLS.
    pub tls: &'static [&'static str],
    /// The databases that a URL may name.
    pub database: Database,
    /// True if a password without a user opens nothing.
    pub needs_user: bool,
}

/// The databases that a URL may name as its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Database {
    /// No database.
    None,
    /// A number.
    Number,
    /// A name.
    Name,
}

/// The address of a server, and the access to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerUrl {
    /// The URL without credentials: `rediss://host:6379`.
    pub public: String,
    /// The host.
    pub host: String,
    /// The credentials of the URL, and TLS with the roots of Mozilla if the URL asks for TLS.
    pub access: Access,
}

impl ServerUrl {
    /// Parses `HOST:PORT`, or a URL of one of the schemes. `port` is the usual port of these servers.
    ///
    /// # Errors
    /// The problem, and the expected form. The message repeats nothing of the text but its scheme.
    pub fn parse(text: &str, schemes: &Schemes, port: u16) -> Result<ServerUrl, String> {
        let (scheme, rest) = text.split_once("://").unwrap_or((schemes.plain[0], text));
        let (is_plain, is_tls) = (schemes.plain.contains(&scheme), schemes.tls.contains(&scheme));
        if !is_plain && !is_tls {
            return Err(format!("the scheme is none of {}", schemes.listed()));
        }
        // A scheme without rules of its own: an http URL would lose a port that is the usual one of http.
        let parsed = Url::parse(&format!("harness://{rest}")).map_err(|error| unparsed(&error.to_string()))?;
        let host = match parsed.host() {
            Some(Host::Domain(host)) if is_name(host) => host.to_ascii_lowercase(),
            Some(Host::Ipv6(_)) => {
                return Err("the run's network has no IPv6; name the host, or its IPv4 address".into());
            }
            _ => return Err(unparsed("there is no host name or IPv4 address")),
        };
        if parsed.fragment().is_some() {
            return Err(unparsed("`#` begins a fragment"));
        }
        let is_tls = match (parsed.query(), schemes.tls.is_empty()) {
            (None, true) | (Some("sslmode=disable"), true) => false,
            (Some("sslmode=verify-full"), true) => true,
            (Some(_), true) => {
                let why = "a certificate that is not checked protects nothing";
                return Err(format!("the only parameter is sslmode=verify-full or sslmode=disable: {why}"));
            }
            (None, false) => is_tls,
            (Some(_), false) => return Err(unparsed("`?` begins parameters, and there are none")),
        };
        let database = schemes.database.named(parsed.path())?;
        let port = parsed.port().unwrap_or(port);
        let mode = if is_tls && schemes.tls.is_empty() { "?sslmode=verify-full" } else { "" };
        let path = database.as_ref().map(|database| format!("/{database}")).unwrap_or_default();
        let user = Some(parsed.username()).filter(|user| !user.is_empty()).map(decoded).transpose()?;
        let password = parsed.password().map(decoded).transpose()?;
        let tls = is_tls.then(Tls::default);
        let public = format!("{scheme}://{host}:{port}{path}{mode}");
        Ok(ServerUrl { public, host, access: Access { user, password, database, tls, schema: None } })
    }
}

impl Schemes {
    /// All schemes, for messages.
    fn listed(&self) -> String {
        let all: Vec<String> = self.plain.iter().chain(self.tls).map(|scheme| format!("{scheme}://")).collect();
        all.join(", ")
    }
}

impl Database {
    /// The database that a path names.
    fn named(self, path: &str) -> Result<Option<String>, String> {
        let name = path.strip_prefix('/').unwrap_or(path);
        let is_right = match self {
            Database::None => false,
            Database::Number => name.len() <= 5 && name.bytes().all(|b| b.is_ascii_digit()),
            Database::Name => is_name(name),
        };
        match (name.is_empty(), is_right) {
            (true, _) => Ok(None),
            (false, true) => Ok(Some(name.to_owned())),
            (false, false) => Err(unparsed(match self {
                Database::None => "expected nothing after the port",
                Database::Number => "expected the number of a database after the port, or nothing",
                Database::Name => "expected the name of a database after the port (letters, digits, `_`, `-`, `.`)",
            })),
        }
    }
}

/// Returns whether the text has only characters of host names and usual names of databases.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
}

/// The message for a URL that cannot be parsed.
fn unparsed(problem: &str) -> String {
    format!(
        "{problem}; expected HOST:PORT or SCHEME://USER:PASSWORD@HOST:PORT, with special characters of the password \
         as %XX (`@` is %40, `/` is %2F, `,` is %2C)"
    )
}

fn decoded(text: &str) -> Result<Secret, String> {
    let text = percent_decode_str(text).decode_utf8().map_err(|_| unparsed("user and password are no UTF-8"))?;
    Ok(Secret::new(text.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REDIS: Schemes =
        Schemes { plain: &["redis"], tls: &["rediss"], database: Database::Number, needs_user: false };
    const ETCD: Schemes = Schemes { plain: &["http"], tls: &["https"], database: Database::None, needs_user: true };
    const POSTGRES: Schemes =
        Schemes { plain: &["postgres", "postgresql"], tls: &[], database: Database::Name, needs_user: true };

    fn public(text: &str, schemes: &Schemes) -> String {
        ServerUrl::parse(text, schemes, 1234).unwrap().public
    }

    #[test]
    fn a_url_is_divided_into_a_public_part_and_credentials() {
        let url = ServerUrl::parse("rediss://alice%40corp:p%40ss%2Fw@Staging.example:7001/3", &REDIS, 6379).unwrap();
        assert_eq!(url.public, "rediss://staging.example:7001/3");
        assert_eq!(url.host, "staging.example");
        assert_eq!(url.access.credentials(), Some(("alice@corp", "p@ss/w")));
        assert_eq!((url.access.database.as_deref(), url.access.tls.is_some()), (Some("3"), true));
        let without_user = ServerUrl::parse("redis://:hunter2@10.0.0.1", &REDIS, 6379).unwrap();
        assert_eq!((without_user.public.as_str(), without_user.access.user), ("redis://10.0.0.1:6379", None));
        assert_eq!(without_user.access.password, Some(Secret::new("hunter2")));
    }

    #[test]
    fn every_form_of_an_address_has_one_public_url() {
        for (text, schemes, expected) in [
            ("staging:6379", &REDIS, "redis://staging:6379"),
            ("redis://staging:6379/", &REDIS, "redis://staging:6379"),
            ("redis://staging:6379/12345", &REDIS, "redis://staging:6379/12345"),
            ("https://etcd-1.staging", &ETCD, "https://etcd-1.staging:1234"),
            ("https://etcd-1.staging:443", &ETCD, "https://etcd-1.staging:443"),
            ("10.1.2.3:2379", &ETCD, "http://10.1.2.3:2379"),
            ("postgres://u:p@pg/app?sslmode=verify-full", &POSTGRES, "postgres://pg:1234/app?sslmode=verify-full"),
            ("postgresql://u:p@pg:5433/app?sslmode=disable", &POSTGRES, "postgresql://pg:5433/app"),
        ] {
            assert_eq!(public(text, schemes), expected);
            assert_eq!(public(expected, schemes), expected, "the public URL is an address too");
        }
    }

    #[test]
    fn a_wrong_url_is_refused_without_repeating_it() {
        for (text, schemes, said) in [
            ("rediss://alice:hunter2@", &REDIS, "host"),
            ("rediss://alice:hunter2@h:port", &REDIS, "port"),
            ("rediss://alice:hun/ter2@h:1", &REDIS, "port"),
            ("redis://alice:12/hunter2@h:1", &REDIS, "the number of a database"),
            ("redis://alice:hunter2@h:1/app", &REDIS, "the number of a database"),
            ("redis://alice:hunter2@h:1/123456", &REDIS, "the number of a database"),
            ("redis://alice:12#hunter2@h:1", &REDIS, "fragment"),
            ("redis://alice:12?hunter2@h:1", &REDIS, "parameters"),
            ("http://alice:hunter2@h:1/x", &ETCD, "nothing after the port"),
            ("https://h:1/hunter2", &ETCD, "nothing after the port"),
            ("ftp://alice:hunter2@h:1", &ETCD, "none of http://, https://"),
            ("redis://[::1]:6379", &REDIS, "IPv6"),
            ("postgres://u:hunter2@pg?sslmode=require", &POSTGRES, "verify-full"),
            ("postgres://u:hunter2@pg/app?sslmode=verify-full&connect_timeout=3", &POSTGRES, "verify-full"),
            ("postgres://u:12/hunter2@pg/app", &POSTGRES, "name of a database"),
            ("postgres://u:%FF@pg/app", &POSTGRES, "UTF-8"),
        ] {
            let refused = ServerUrl::parse(text, schemes, 1).unwrap_err();
            assert!(refused.contains(said), "{text}: {refused}");
            assert!(!refused.contains("hunter2") && !refused.contains("alice"), "{refused}");
        }
    }
}
