//! Access to a server that exists already: credentials, TLS, and the place for the names of a run.
//!
//! The texts of credentials are in [`Secret`], which no message shows. Messages of servers and libraries pass through
//! [`Access::without_secrets`] before they reach a failure, because some of them repeat the user.

mod url;

use std::{cmp::Reverse, fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use tokio_rustls::rustls::{
    ClientConfig, RootCertStore,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

pub use self::url::{Database, Schemes, ServerUrl};
use crate::ports::NodeError;

/// The shortest user that is replaced in messages. A shorter one would be found in other words.
const USER_MIN: usize = 3;
/// The text in the place of a secret.
const HIDDEN: &str = "***";

/// A text that no message shows: its `Debug` is `***`. Only serialization writes the text.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(Arc<str>);

/// Access to a server. The default is a server that needs none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Access {
    /// The user; the server's default user, if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<Secret>,
    /// The user's password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<Secret>,
    /// The database: of Postgres a name, of Redis a number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub database: Option<String>,
    /// TLS; without it, the connection is plain TCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
    /// The schema of a database for all tables of the run. The first session creates the schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
}

/// The certificates of TLS. The server's certificate is always checked, also its name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// The roots that are trusted, in the format PEM; the roots of Mozilla, if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub roots: Option<String>,
    /// The client's own certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<Identity>,
}

/// A client's certificate, in the format PEM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The certificate, followed by those of its issuers.
    pub certificates: String,
    /// The private key.
    pub key: Secret,
}

impl Secret {
    /// Hides a text.
    pub fn new(text: impl Into<Arc<str>>) -> Secret {
        Secret(text.into())
    }

    /// The text.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl Access {
    /// Returns a message of a server or of a library without user and password.
    pub fn without_secrets(&self, text: impl Into<String>) -> String {
        let password = self.password.iter().filter(|secret| !secret.reveal().is_empty());
        let user = self.user.iter().filter(|secret| secret.reveal().len() >= USER_MIN);
        let mut secrets: Vec<&str> = password.chain(user).map(Secret::reveal).collect();
        // The longer one may contain the other.
        secrets.sort_by_key(|secret| Reverse(secret.len()));
        secrets.into_iter().fold(text.into(), |text: String, secret| text.replace(secret, HIDDEN))
    }

    /// As [`Access::without_secrets`], of a failure.
    pub(crate) fn hide(&self, error: NodeError) -> NodeError {
        match error {
            NodeError::Definite(text) => NodeError::Definite(self.without_secrets(text)),
            NodeError::Indeterminate(text) => NodeError::Indeterminate(self.without_secrets(text)),
        }
    }

    /// Returns user and password; none, if there is no user.
    pub(crate) fn credentials(&self) -> Option<(&str, &str)> {
        let password = self.password.as_ref().map_or("", Secret::reveal);
        self.user.as_ref().map(|user| (user.reveal(), password))
    }
}

impl Tls {
    /// Checks the certificates.
    ///
    /// # Errors
    /// A text has no certificate or key of the format PEM. The message shows none of the text.
    pub fn check(&self) -> Result<(), String> {
        self.config().map(drop)
    }

    /// The configuration for a connection.
    pub(crate) fn config(&self) -> Result<ClientConfig, String> {
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(self.trusted()?);
        let Some(identity) = &self.identity else { return Ok(config.with_no_client_auth()) };
        let key = PrivateKeyDer::from_pem_slice(identity.key.reveal().as_bytes())
            .map_err(|_| "the client's key is no private key of the format PEM".to_owned())?;
        let chain = certificates(&identity.certificates)?;
        config.with_client_auth_cert(chain, key).map_err(|error| format!("the client's certificate: {error}"))
    }

    /// The roots that are trusted: those of the user and no others, if the user gives any.
    fn trusted(&self) -> Result<RootCertStore, String> {
        let mut trusted = RootCertStore::empty();
        match &self.roots {
            None => trusted.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
            Some(pem) => {
                for root in certificates(pem)? {
                    trusted.add(root).map_err(|error| format!("a root certificate cannot be used: {error}"))?;
                }
            }
        }
        Ok(trusted)
    }
}

/// Reads the certificates of a file of the format PEM.
fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err("found no certificate of the format PEM".into()),
        Err(error) => Err(format!("expected certificates of the format PEM: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A root of nobody: `openssl req -x509 -newkey ed25519 -nodes -subj "/CN=root of a test"`.
    const ROOT: &str = "\
-----BEGIN CERTIFICATE-----
MIIBSDCB+6ADAgECAhR4RuV+G/KgFvg4utA8pXiZoIvudTAFBgMrZXAwGTEXMBUG
A1UEAwwOcm9vdCBvZiBhIHRlc3QwIBcNMjYxMTI4MTUyNjA4WhgPMjEyNjExMDQx
NTI2MDhaMBkxFzAVBgNVBAMMDnJvb3Qgb2YgYSB0ZXN0MCowBQYDK2VwAyEAAD5r
fYLYZzLh+X93LoVkIVeHr+d0icUEiZfPRtSI8yCjUzBRMB0GA1UdDgQWBBSZ85Ul
Ltd9EVuqNmc15lD2HZhgvDAfBgNVHSMEGDAWgBSZ85UlLtd9EVuqNmc15lD2HZhg
vDAPBgNVHRMBAf8EBTADAQH/MAUGAytlcANBAK6A/8bnJW0E0s3puAoLjTfGu3N+
pppARWT5BYMEF7MNyRzhq6rKofdvtPq1JuAPd4Fm8V4gCSiOo+Ycir1gNwA=
-----END CERTIFICATE-----
";

    fn secrets(user: &str, password: &str) -> Access {
        let (user, password) = (Some(Secret::new(user)), Some(Secret::new(password)));
        Access { user, password, ..Access::default() }
    }

    #[test]
    fn no_message_shows_a_secret() {
        let access = secrets("alice", "hunter2");
        assert!(!format!("{access:?}").contains("hunter2") && !format!("{access:?}").contains("alice"));
        let said = access.without_secrets("NOPERM User alice has no permissions (hunter2)");
        assert_eq!(said, "NOPERM User *** has no permissions (***)");
        for (user, said, shown) in [
            ("a", "a failure", "a failure"),
            ("al", "al failed to log in", "al failed to log in"),
            ("bob", "bob failed to log in", "*** failed to log in"),
        ] {
            assert_eq!(secrets(user, "hunter2").without_secrets(said), shown);
        }
        let hidden = access.hide(NodeError::Indeterminate("hunter2".into()));
        assert_eq!(hidden, NodeError::Indeterminate("***".into()));
    }

    #[test]
    fn a_password_that_contains_the_user_is_hidden_as_a_whole() {
        let access = secrets("harness", "harness-s3cret");
        let said = access.without_secrets("user harness: the password harness-s3cret is wrong");
        assert_eq!(said, "user ***: the password *** is wrong");
    }

    #[test]
    fn a_user_that_contains_the_password_is_hidden_as_a_whole() {
        let access = secrets("harness-s3cret", "s3cret");
        let said = access.without_secrets("user harness-s3cret: the password s3cret is wrong");
        assert_eq!(said, "user ***: the password *** is wrong");
    }

    #[test]
    fn access_survives_the_way_to_a_worker() {
        let identity = Identity { certificates: "pem".into(), key: Secret::new("key") };
        let access = Access {
            password: Some(Secret::new("hunter2")),
            tls: Some(Tls { roots: None, identity: Some(identity) }),
            ..Access::default()
        };
        let text = serde_json::to_string(&access).unwrap();
        assert_eq!(serde_json::from_str::<Access>(&text).unwrap(), access);
    }

    #[test]
    fn a_user_with_own_roots_trusts_no_others() {
        let trusted = |roots: Option<String>| Tls { roots, identity: None }.trusted().unwrap().len();
        assert_eq!(trusted(Some(ROOT.to_owned())), 1);
        assert_eq!(trusted(Some(ROOT.repeat(2))), 2);
        assert_eq!(trusted(None), webpki_roots::TLS_SERVER_ROOTS.len());
    }

    #[test]
    fn certificates_are_checked_before_they_are_used() {
        let roots = |text: &str| Tls { roots: Some(text.to_owned()), identity: None }.check();
        assert_eq!(Tls::default().check(), Ok(()));
        assert!(roots("no certificate").unwrap_err().contains("found no certificate"));
        let key = Secret::new("hunter2");
        let identity = Some(Identity { certificates: String::new(), key });
        let refused = Tls { roots: None, identity }.check().unwrap_err();
        assert!(refused.contains("no private key") && !refused.contains("hunter2"), "{refused}");
    }
}
