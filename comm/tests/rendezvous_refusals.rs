//! Who does not fit is refused by name; mistakes that leave the job no way to start end it for
//! everybody, soon.

use crate::tcp_support::{Joined, job_options, join_all, options, reserve_port};
use headlong_comm::launcher_env::SecretSource;
use headlong_comm::rendezvous::{JoinOptions, join};
use headlong_comm::transport::Transport as _;
use headlong_comm::{CommError, Rank};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Starts a job of three in which `change` makes rank 1 another; the answers of all, which must
/// come soon.
fn with_odd_rank_1(change: impl FnOnce(&mut JoinOptions)) -> Vec<Joined> {
    let port = reserve_port();
    let mut all = job_options(3, port.port);
    change(&mut all[1]);
    let begin = Instant::now();
    let answers = join_all(all);
    assert!(
        begin.elapsed() < Duration::from_secs(6),
        "everybody hears soon: {:?}",
        begin.elapsed()
    );
    answers
}

/// Every rank's error contains the words.
fn assert_all_say(answers: &[Joined], words: &[&str]) {
    for (rank, answer) in answers.iter().enumerate() {
        let text = answer.as_ref().expect_err("there is no job").to_string();
        for word in words {
            assert!(text.contains(word), "rank {rank} says: {text}");
        }
    }
}

#[test]
fn wrong_world_size_fails_everybody_and_names_the_culprit() {
    let answers = with_odd_rank_1(|options| options.launch.world_size = 5);
    assert_all_say(
        &answers,
        &["it expects a job of 5 ranks, rank 0 one of 3", "rank 1 was refused"],
    );
}

#[test]
fn mismatched_config_fails_everybody_and_names_the_culprit() {
    let answers = with_odd_rank_1(|options| options.config_fingerprint = [9; 32]);
    assert_all_say(
        &answers,
        &["rank 1 was refused: its configuration differs from rank 0's", "09090909 and 07070707"],
    );
}

#[test]
fn another_build_fails_everybody_and_names_the_culprit() {
    let answers = with_odd_rank_1(|options| options.build = "0.0.9".into());
    assert_all_say(
        &answers,
        &["rank 1 was refused: it runs build 0.0.9 (protocol 3), rank 0 runs"],
    );
}

/// A process of another job is sent away, and nothing else happens.
#[test]
fn another_job_is_refused_and_the_job_starts() {
    let port = reserve_port();
    let mut all = job_options(2, port.port);
    let mut stray = options(1, 2, port.port);
    stray.launch.job = "last week's".into();
    all.push(stray);
    let mut answers = join_all(all);
    let stray = answers.pop().expect("three answers").expect_err("it has no place").to_string();
    // It may also come when the job is already running.
    assert!(
        stray.contains("it belongs to job `last week's`") || stray.contains("the job is running"),
        "{stray}"
    );
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
}

/// Two processes claim rank 1: one of them has a place.
#[test]
fn duplicate_rank_is_refused_by_name_and_the_job_starts() {
    let port = reserve_port();
    let mut all = job_options(3, port.port);
    all.insert(1, options(1, 3, port.port));
    let answers = join_all(all);
    let errors: Vec<String> =
        answers.iter().filter_map(|answer| Some(answer.as_ref().err()?.to_string())).collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
    let named =
        errors[0].contains("rank 1 is already there") || errors[0].contains("a second rank 1");
    assert!(named, "{errors:?}");
}

/// A process that claims a rank of a running job learns why it cannot have it; the job does not
/// notice.
#[test]
fn a_latecomer_learns_that_the_job_is_running() {
    let port = reserve_port();
    let ranks = join_all(job_options(2, port.port));
    let late = join(&options(1, 2, port.port)).expect_err("too late");
    assert!(late.to_string().contains("the job is running, all its ranks have come"), "{late}");
    assert!(ranks.iter().all(|rank| rank.as_ref().is_ok_and(|rank| rank.check().is_ok())));
}

#[test]
fn a_wrong_secret_is_refused_and_says_so_on_both_sides() {
    let port = reserve_port();
    let mut all = job_options(2, port.port);
    all[0].deadlines.rendezvous = Duration::from_secs(4);
    all[1].launch.secret = SecretSource::Value(b"open sesame, open sesame".into());
    let begin = Instant::now();
    let answers = join_all(all);
    let texts: Vec<String> =
        answers.iter().map(|answer| answer.as_ref().expect_err("no job").to_string()).collect();
    assert!(texts[0].contains("rank 1 of 2 did not come"), "{}", texts[0]);
    assert!(texts[0].contains("with a proof that does not fit"), "{}", texts[0]);
    assert!(
        texts[1].contains("does not accept this rank's proof: the secrets differ"),
        "{}",
        texts[1]
    );
    assert!(!texts.concat().contains("sesame"), "no secret is printed");
    assert!(begin.elapsed() < Duration::from_secs(6));
}

#[test]
fn missing_ranks_are_listed_by_number() {
    let port = reserve_port();
    let mut all = job_options(5, port.port);
    all.iter_mut().for_each(|options| options.deadlines.rendezvous = Duration::from_millis(900));
    all.retain(|options| [0, 3].contains(&options.launch.rank.0));
    let answers = join_all(all);
    assert_all_say(
        &answers,
        &["the job did not come together: ranks 1, 2, 4 of 5 did not come within"],
    );
}

#[test]
fn rank_0_that_is_not_there_is_named_with_its_address() {
    let port = reserve_port();
    let mut alone = options(1, 2, port.port);
    alone.deadlines.rendezvous = Duration::from_millis(500);
    let error = join(&alone).expect_err("no one is there").to_string();
    assert!(
        error.contains(&format!("rank 0 at 127.0.0.1:{} cannot be reached", port.port)),
        "{error}"
    );
}

#[test]
fn a_port_that_is_used_is_named_with_what_to_do() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("its address").port();
    let mut rank_0 = options(0, 2, port);
    rank_0.deadlines.rendezvous = Duration::from_millis(500);
    let error = join(&rank_0).expect_err("the port is used").to_string();
    assert!(error.contains(&format!("127.0.0.1:{port}: the port is already used")), "{error}");
    assert!(error.contains("HEADLONG_MASTER_PORT"), "{error}");
    // Anyone who knocks there meets something that says nothing.
    let mut rank_1 = options(1, 2, port);
    rank_1.deadlines.rendezvous = Duration::from_millis(800);
    rank_1.deadlines.handshake = Duration::from_millis(200);
    let error = join(&rank_1).expect_err("no one answers").to_string();
    assert!(error.contains("it listens, but says nothing"), "{error}");
}

#[test]
fn addresses_that_cannot_be_rank_0s_are_explained() {
    let mut elsewhere = options(0, 2, 4000);
    elsewhere.launch.master_host = "192.0.2.1".into();
    let error = join(&elsewhere).expect_err("not here").to_string();
    assert!(error.contains("not an address of this machine"), "{error}");
    let mut loopback = options(0, 4, 4000);
    (loopback.launch.local_rank, loopback.launch.local_size) = (Some(0), Some(2));
    let error = join(&loopback).expect_err("others could not come").to_string();
    assert!(error.contains("takes that name for a loopback address"), "{error}");
}

#[test]
fn a_job_of_one_needs_no_one() {
    let mut alone = options(0, 1, 1);
    alone.launch.master_host = "no such host".into();
    let transport = join(&alone).expect("no one is needed");
    assert_eq!((transport.rank(), transport.topology().num_ranks()), (Rank(0), 1));
    transport.close().expect("no one to say goodbye to");
}

/// Ranks on machines of two: the topology is the one asked for, on every rank.
#[test]
fn nodes_are_found_or_set() {
    let port = reserve_port();
    let found = join_all(job_options(2, port.port));
    assert!(
        found.iter().all(|rank| rank.as_ref().is_ok_and(|rank| rank.topology().num_nodes() == 1))
    );
    drop(found);
    let port = reserve_port();
    let mut all = job_options(3, port.port);
    all.iter_mut().for_each(|options| options.ranks_per_node = 2);
    for rank in join_all(all) {
        assert_eq!(
            rank.expect("joins").topology(),
            &headlong_comm::Topology::from_node_sizes(&[2, 1])
        );
    }
}

/// The first error of a job that did not come together is one that can be told from others by a
/// program.
#[test]
fn kinds_of_errors() {
    let answers = with_odd_rank_1(|options| options.launch.world_size = 4);
    assert!(
        answers.iter().all(|answer| matches!(answer, Err(CommError::Refused { .. }))),
        "{answers:?}"
    );
}

/// What a rank has said while it waited.
fn words_of(mut options: JoinOptions) -> (String, String) {
    let said: Arc<Mutex<Vec<String>>> = Arc::default();
    let heard = Arc::clone(&said);
    options.notice =
        Some(Arc::new(move |text: &str| heard.lock().expect("no panic").push(text.to_owned())));
    let error = join(&options).expect_err("there is no job").to_string();
    let said = said.lock().expect("no panic").join("\n");
    (said, error)
}

/// A wait that may be long is not silent: a name that no one knows is said at once, on both sides.
#[test]
fn who_waits_says_so() {
    for rank in [0, 1] {
        let mut unknown = options(rank, 2, 4000);
        unknown.launch.master_host = "no-such-machine.invalid".into();
        unknown.deadlines.rendezvous = Duration::from_millis(300);
        let (said, error) = words_of(unknown);
        let words = "at no-such-machine.invalid:4000: ";
        assert!(
            said.contains(words) && said.contains("tried again (0 s so far)"),
            "rank {rank}: {said}"
        );
        assert!(error.contains("no-such-machine.invalid:4000"), "{error}");
    }
    let port = reserve_port();
    let mut waits = options(1, 2, port.port);
    waits.deadlines.rendezvous = Duration::from_millis(5600);
    let (said, _) = words_of(waits);
    let words = format!(
        "rank 0 at 127.0.0.1:{}: Connection refused (os error 111); tried again (5 s",
        port.port
    );
    assert!(said.contains(&words), "{said}");
}
