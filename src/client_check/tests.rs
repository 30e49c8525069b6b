use super::*;

/// A program that notes each attempt in the file `attempts`, and answers it as `ACQUIRE` says. All else is done, and
/// noted in the file `others`.
const SCRIPT: &str = r#"
say() { printf '{"id":%s,%s}\n' "$id" "$1"; }
ok='"ok":true' held='"ok":false,"error":"held"' timeout='"ok":false,"error":"timeout"'
while read -r line; do
    id=${line#*:}; id=${id%%,*}
    case $line in
    *'"op":"acquire"'*) echo >> attempts; ACQUIRE ;;
    *'"op":"init"'*) say "$ok" ;;
    *) echo >> others; say "$ok" ;;
    esac
done"#;

/// Makes a check of this lease with a program that answers attempts so. Returns its outcome, and the number of
/// attempts.
async fn checked(check: Check, lease: Duration, acquire: &str) -> (Result<String, String>, usize) {
    let dir = tempfile::tempdir().unwrap();
    let words = ["bash", "-c", &SCRIPT.replace("ACQUIRE", acquire)].map(str::to_owned).to_vec();
    let command = ProgramCommand { words, dir: Some(dir.path().to_owned()) };
    let mut bench = Bench::new(command, Vec::new(), lease);
    let outcome = bench.decided(check).await;
    let attempts = std::fs::read_to_string(dir.path().join("attempts")).unwrap();
    (outcome, attempts.lines().count())
}

async fn held(acquire: &str) -> (Result<String, String>, usize) {
    checked(Check::Held, Duration::from_secs(10), acquire).await
}

#[test]
fn a_program_gets_the_host_of_a_server_without_brackets() {
    for (address, host) in [("127.0.0.1:6379", "127.0.0.1"), ("localhost:6379", "localhost"), ("[::1]:6379", "::1")] {
        let server = server(&("redis-1".to_owned(), address.to_owned()));
        assert_eq!((server.host.as_str(), server.port), (host, 6_379));
    }
}

#[tokio::test]
async fn a_token_that_does_not_grow_is_wrong() {
    let with_tokens = |second: u32| {
        let acquire = format!(r#"say "$ok,\"token\":$([ $(wc -l < attempts) = 1 ] && echo 7 || echo {second})""#);
        async move { checked(Check::Acquire, Duration::from_secs(10), &acquire).await.0 }
    };
    assert!(with_tokens(8).await.unwrap().contains("tokens grow"));
    for second in [7, 6] {
        let problem = with_tokens(second).await.unwrap_err();
        assert!(problem.contains("expected a token larger than 7, that of the hold before"), "{problem}");
    }
}

#[tokio::test]
async fn a_renewal_that_prolongs_nothing_gives_two_holders() {
    // The answer to `renew` promises a long lease, so that no machine is too slow for this test.
    let acquire = r#"say '"ok":true'; ok='"ok":true,"lease_ms":600000'"#;
    let (outcome, attempts) = checked(Check::Renew, Duration::from_millis(50), acquire).await;
    let problem = outcome.unwrap_err();
    let words = "because the holder renewed it: two clients would hold the lock; line ";
    assert!(problem.contains(words) && attempts == 2, "{problem}");
}

#[tokio::test]
async fn a_late_release_must_not_free_the_next_hold() {
    // The third attempt succeeds only after a release. The second hold has a long lease, so that no answer is late. The
    // script starts no other program: with this lease, an answer must come within a second.
    let acquire = r#"mapfile all < attempts; case ${#all[@]} in
        2) say "$ok,\"lease_ms\":600000" ;;
        3) if [ -e others ]; then say "$ok"; else say "$held"; fi ;;
        *) say "$ok" ;;
    esac"#;
    let (outcome, attempts) = checked(Check::LateRelease, Duration::from_millis(50), acquire).await;
    let problem = outcome.unwrap_err();
    assert!(problem.contains("after a holder whose lease has ended released the lock"), "{problem}");
    assert_eq!(attempts, 3);
}

#[tokio::test]
async fn a_late_answer_makes_a_check_begin_again_and_accuses_no_program() {
    let (outcome, attempts) = held(r#"say "$timeout""#).await;
    let problem = outcome.unwrap_err();
    assert!(problem.starts_with("the machine is too slow for a lease of 10s"), "{problem}");
    assert!(problem.contains("of a free lock; line ") && problem.contains("\"timeout\"}. Try a"), "{problem}");
    assert_eq!(attempts, 3);

    // The first attempt of the holder is late, and then that of the other client.
    let late = r#"case $(wc -l < attempts) in 1|3) say "$timeout";; 5) say "$held";; *) say "$ok";; esac"#;
    assert_eq!(held(late).await, (Ok("another client is refused while the lock is held".into()), 5));

    // Each promise has ended when the other client gets the lock.
    let (outcome, attempts) = held(r#"say "$ok,\"lease_ms\":1""#).await;
    let problem = outcome.unwrap_err();
    assert!(problem.contains("too slow") && problem.contains("read after the promise"), "{problem}");
    assert!(!problem.contains("two clients") && attempts == 6, "{problem}");
}

#[tokio::test]
async fn an_answer_is_late_if_the_promise_of_the_holder_ended_while_the_program_made_it() {
    // The promise is shorter than the time that the program takes, so no machine is too slow for this test.
    let slow = r#"case $(wc -l < attempts) in
        1) say "$ok,\"lease_ms\":300" ;;
        2) sleep 0.3; say "$ok" ;;
        3) say "$ok" ;;
        *) say "$held" ;;
    esac"#;
    assert_eq!(held(slow).await, (Ok("another client is refused while the lock is held".into()), 4));
}

#[tokio::test]
async fn a_second_holder_during_the_promise_of_the_first_is_wrong_at_once() {
    let (outcome, attempts) = held(r#"say "$ok""#).await;
    let problem = outcome.unwrap_err();
    assert!(problem.contains("two clients would hold the lock; line ") && attempts == 2, "{problem}");
}
