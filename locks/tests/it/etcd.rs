//! The client of etcd against a member in memory.

use std::{sync::Arc, time::Duration};

use locks::{
    Key, LeaseId, Mode, NodeError, Op, Owner, Revision, ServerAddress, Store, StoreAnswer,
    access::{Access, Identity, Secret, Tls},
    connect_etcd,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tokio::{net::TcpListener, time::timeout};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig,
        crypto::ring::default_provider,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
        server::WebPkiClientVerifier,
    },
};

mod member;

use member::{Member, TTL_S};

/// For how long a test waits for something that must come.
const PATIENCE: Duration = Duration::from_secs(20);
/// The revisions of the first three keys.
const FIRST: Revision = Revision(2);
const SECOND: Revision = Revision(3);
const THIRD: Revision = Revision(4);

async fn start() -> (Member, Arc<dyn Store>) {
    let member = Member::start().await;
    let address = ServerAddress::new("etcd-1", member.address.as_str());
    let store = connect_etcd("etcd", &[address], 0).await.unwrap();
    (member, store)
}

fn create(owner: &str) -> Op {
    create_in(Mode::Write, owner)
}

fn create_in(mode: Mode, owner: &str) -> Op {
    Op::Create(Key::new("k0"), Owner::new(owner), LeaseId(7), mode)
}

fn before(revision: Revision) -> Op {
    Op::Before(Key::new("k0"), revision, Mode::Write)
}

fn confirm(revision: Revision) -> Op {
    Op::Confirm(Key::new("k0"), revision, Mode::Write)
}

/// Two keys in the queue, without another change between them.
async fn with_two_keys() -> (Member, Arc<dyn Store>) {
    let (member, store) = start().await;
    assert_eq!(store.send(create("a")).await, Ok(StoreAnswer::First(FIRST)));
    assert_eq!(store.send(create("b")).await, Ok(StoreAnswer::At(SECOND)));
    (member, store)
}

#[tokio::test]
async fn a_key_that_was_created_just_before_is_seen() {
    let (_member, store) = with_two_keys().await;
    assert_eq!(store.send(before(SECOND)).await, Ok(StoreAnswer::At(FIRST)));
    assert_eq!(store.send(confirm(SECOND)).await, Ok(StoreAnswer::Refused));
    assert_eq!(store.send(Op::Delete(Key::new("k0"), FIRST)).await, Ok(StoreAnswer::Done));
    assert_eq!(store.send(before(SECOND)).await, Ok(StoreAnswer::Gone));
    assert_eq!(store.send(confirm(SECOND)).await, Ok(StoreAnswer::Done));
}

#[tokio::test]
async fn a_key_that_conflicts_is_seen_behind_one_that_does_not() {
    // Only a writer conflicts with the newest older key too.
    for mode in Mode::ALL {
        let is_writer = mode == Mode::Write;
        let (_member, store) = start().await;
        let [before, confirm] = [Op::Before, Op::Confirm].map(|op| op(Key::new("k0"), THIRD, mode));
        assert_eq!(store.send(create("a")).await, Ok(StoreAnswer::First(FIRST)));
        assert_eq!(store.send(create_in(Mode::IntentRead, "b")).await, Ok(StoreAnswer::At(SECOND)));
        assert_eq!(store.send(create_in(mode, "c")).await, Ok(StoreAnswer::At(THIRD)));
        let newest = if is_writer { SECOND } else { FIRST };
        assert_eq!(store.send(before.clone()).await, Ok(StoreAnswer::At(newest)), "{mode}");
        assert_eq!(store.send(confirm.clone()).await, Ok(StoreAnswer::Refused), "{mode}");
        assert_eq!(store.send(Op::Delete(Key::new("k0"), FIRST)).await, Ok(StoreAnswer::Done));
        let (newest, confirmed) = match is_writer {
            true => (StoreAnswer::At(SECOND), StoreAnswer::Refused),
            false => (StoreAnswer::Gone, StoreAnswer::Done),
        };
        assert_eq!(store.send(before).await, Ok(newest), "{mode}");
        assert_eq!(store.send(confirm).await, Ok(confirmed), "{mode}");
    }
}

#[tokio::test]
async fn no_queue_has_the_keys_of_another_whose_name_begins_like_its_own() {
    let (_member, store) = start().await;
    for (name, revision) in [("k0", FIRST), ("k01", SECOND), ("k", THIRD)] {
        let create = Op::Create(Key::new(name), Owner::new("a"), LeaseId(7), Mode::Write);
        assert_eq!(store.send(create).await, Ok(StoreAnswer::First(revision)), "{name}");
    }
}

#[tokio::test]
async fn a_key_that_has_gone_is_not_confirmed() {
    let (member, store) = with_two_keys().await;
    member.remove("k0/a");
    member.remove("k0/b");
    assert_eq!(store.send(confirm(SECOND)).await, Ok(StoreAnswer::Refused));
}

#[tokio::test]
async fn a_waiter_misses_no_end_that_its_member_does_not_report() {
    let (member, store) = with_two_keys().await;
    let mut gone = store.send(Op::AwaitGone(Key::new("k0"), FIRST));
    assert!(timeout(Duration::from_millis(50), &mut gone).await.is_err(), "the key is there");
    member.remove("k0/a");
    assert_eq!(timeout(PATIENCE, gone).await.expect("the client looks again"), Ok(StoreAnswer::Gone));
}

#[tokio::test]
async fn a_keep_alive_survives_the_end_of_its_stream() {
    let (member, store) = start().await;
    let alive = Ok(StoreAnswer::Leased(LeaseId(7), Duration::from_secs(TTL_S.into())));
    for _ in 0..2 {
        assert_eq!(store.send(Op::KeepAlive(LeaseId(7))).await, alive);
    }
    member.end_streams();
    assert_eq!(store.send(Op::KeepAlive(LeaseId(7))).await, alive);
}

#[tokio::test]
async fn a_request_whose_answer_is_lost_may_have_been_done() {
    let (member, store) = start().await;
    member.lose_answers();
    let lost = store.send(create("a")).await;
    assert!(matches!(lost, Err(NodeError::Indeterminate(_))), "{lost:?}");
    assert!(member.has("k0/a"));
}

#[tokio::test]
async fn a_second_creation_finds_the_key_of_the_first() {
    let (_member, store) = with_two_keys().await;
    assert_eq!(store.send(create("a")).await, Ok(StoreAnswer::First(FIRST)));
    assert_eq!(store.send(create("b")).await, Ok(StoreAnswer::At(SECOND)));
    assert_eq!(store.send(create("c")).await, Ok(StoreAnswer::At(THIRD)), "nothing was created meanwhile");
    assert_eq!(store.send(create("b")).await, Ok(StoreAnswer::At(SECOND)));
}

#[tokio::test]
async fn a_key_with_a_separator_has_a_queue_of_its_own() {
    let (member, store) = start().await;
    let keys = [
        (Key::new("k0/1"), "k0%2F1/a"),
        (Key::new("k0%2F1"), "k0%252F1/a"),
        (Key::new("k0"), "k0/a"),
        (Key::within("all/mine/", "k0/1"), "all/mine/k0%2F1/a"),
    ];
    for (key, name) in keys {
        let created = store.send(Op::Create(key, Owner::new("a"), LeaseId(7), Mode::Write)).await;
        assert!(matches!(created, Ok(StoreAnswer::First(_))), "{name} is first in its queue: {created:?}");
        assert!(member.has(name), "{name}");
    }
}

#[tokio::test]
async fn a_request_goes_to_the_next_member_if_one_fails() {
    let (failing, other) = (Member::start().await, Member::start().await);
    failing.lose_answers();
    let address = |name, member: &Member| ServerAddress::new(name, member.address.as_str());
    let members = [address("etcd-1", &failing), address("etcd-2", &other)];
    for (first, answer) in [(0, StoreAnswer::First(FIRST)), (2, StoreAnswer::At(SECOND))] {
        let store = connect_etcd("etcd", &members, first).await.unwrap();
        assert_eq!(store.send(create(&format!("a{first}"))).await, Ok(answer));
    }
    other.lose_answers();
    let store = connect_etcd("etcd", &members, 0).await.unwrap();
    let lost = store.send(create("b")).await;
    assert!(matches!(lost, Err(NodeError::Indeterminate(_))), "{lost:?}");
}

#[tokio::test]
async fn a_server_that_wants_a_certificate_gets_that_of_the_client() {
    let mut root = CertificateParams::default();
    // With one name for all, a certificate would count as signed by itself.
    root.distinguished_name.push(DnType::CommonName, "root of a test");
    root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root = CertifiedIssuer::self_signed(root, KeyPair::generate().unwrap()).unwrap();
    let issued = |name: &str| {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new([name.to_owned()]).unwrap().signed_by(&key, &root).unwrap();
        (certificate.pem(), key.serialize_pem())
    };
    let certificate = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();

    let (mut roots, provider) = (RootCertStore::empty(), Arc::new(default_provider()));
    roots.add(certificate(&root.pem())).unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().unwrap();
    let (pem, key) = issued("127.0.0.1");
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let config = config.with_client_cert_verifier(verifier).with_single_cert(vec![certificate(&pem)], key).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();

    let (certificates, key) = issued("client");
    let identity = Some(Identity { certificates, key: Secret::new(key) });
    let access = Access { tls: Some(Tls { roots: Some(root.pem()), identity }), ..Access::default() };
    let address = ServerAddress::new("etcd-1", listener.local_addr().unwrap().to_string());
    let store = connect_etcd("etcd", &[ServerAddress { access, ..address }], 0).await.unwrap();
    let _asked = store.send(create("a"));
    let (stream, _) = timeout(PATIENCE, listener.accept()).await.unwrap().unwrap();
    let shaken = timeout(PATIENCE, TlsAcceptor::from(Arc::new(config)).accept(stream)).await.unwrap();
    shaken.expect("the client's certificate");
}

/// The store over two members.
async fn store_of(first: &Member, next: &Member) -> Arc<dyn Store> {
    let members = [("etcd-1", first), ("etcd-2", next)];
    let members = members.map(|(name, member)| ServerAddress::new(name, member.address.as_str()));
    connect_etcd("etcd", &members, 0).await.unwrap()
}

#[tokio::test]
async fn a_key_that_the_next_member_does_not_find_may_have_been_removed_by_the_first() {
    let (first, next) = (Member::start().await, Member::start().await);
    let store = store_of(&first, &next).await;
    assert_eq!(store.send(create("a")).await, Ok(StoreAnswer::First(FIRST)));
    first.lose_answers();
    let deleted = store.send(Op::Delete(Key::new("k0"), FIRST)).await;
    assert!(!first.has("k0/a"));
    assert!(matches!(deleted, Err(NodeError::Indeterminate(_))), "{deleted:?}");
}

#[tokio::test]
async fn the_late_copy_of_a_creation_leaves_no_key() {
    let prompt = Member::start().await;
    let late = Member::beside(&prompt, Duration::from_millis(600)).await;
    let store = store_of(&late, &prompt).await;
    assert_eq!(store.send(create("a")).await, Ok(StoreAnswer::First(FIRST)));
    assert_eq!(store.send(Op::Delete(Key::new("k0"), FIRST)).await, Ok(StoreAnswer::Done));
    assert!(!prompt.has("k0/a"));
    // The copy creates the key again, and the client deletes it.
    let again = async {
        while !prompt.has("k0/a") {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        while prompt.has("k0/a") {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), again).await.expect("the copy left no key");
}
