//! A rank that does something long on its host, and says so, is waited for, whatever the deadline;
//! one that does not say so is not.

use crate::tcp_support::{Way, over_every_way, reserve_port};
use headlong_comm::{CommError, CommOptions, Communicator};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

// Both progress loops that wait: that of TCP and that of all other paths.
over_every_way!(
    @ tcp, Tcp, a_busy_rank_is_waited_for, a_busy_rank_that_waits_itself_excuses_no_one
);
over_every_way!(
    @ nodes, Nodes, a_busy_rank_is_waited_for, a_busy_rank_that_waits_itself_excuses_no_one
);

/// No wait of these jobs may take longer, except for a busy rank.
const DEADLINE: Duration = Duration::from_millis(1200);

/// A job of three, whose rank 0 says `said`.
fn job(way: Way, said: &Arc<Mutex<Vec<String>>>) -> Vec<Communicator> {
    let port = reserve_port();
    let mut all = way.job_options(3, port.port);
    for options in &mut all {
        options.deadlines.operation = DEADLINE;
        options.deadlines.notice = Duration::from_millis(1000);
        let said = Arc::clone(said);
        options.notice =
            Some(Arc::new(move |text: &str| said.lock().unwrap().push(text.to_owned())));
    }
    let ends = way.join_all(all).into_iter();
    ends.map(|transport| Communicator::new(transport, CommOptions::default())).collect()
}

/// Runs `work` on every rank, on a thread of its own.
fn on_all<T: Send>(ranks: &[Communicator], work: impl Fn(&Communicator) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = ranks.iter().map(|rank| scope.spawn(move || work(rank))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// Each rank in turn: rank 0 tells all by itself, what the others do goes by rank 0.
fn a_busy_rank_is_waited_for(way: Way) {
    let said = Arc::default();
    let ranks = job(way, &said);
    let begin = Instant::now();
    for busy in [1, 0] {
        let answers = on_all(&ranks, |rank| {
            if rank.rank().0 == busy {
                let _busy = rank.busy("saves a checkpoint");
                std::thread::sleep(DEADLINE * 2);
            }
            rank.barrier()
        });
        assert!(answers.iter().all(Result::is_ok), "rank {busy} is busy: {answers:?}");
    }
    assert!(begin.elapsed() >= DEADLINE * 4);
    // A rank that does not come to the goodbyes, either.
    let answers = on_all(&ranks, |rank| {
        if rank.rank().0 == 2 {
            let _busy = rank.busy("writes its trace");
            std::thread::sleep(DEADLINE * 2);
        }
        rank.close()
    });
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    let said = said.lock().unwrap().join("\n");
    for words in [
        "waiting for rank 1, which saves a checkpoint (",
        "waiting for rank 0, which saves a checkpoint (",
        "waiting for rank 2, which writes its trace (",
    ] {
        assert!(said.contains(words), "{said}");
    }
}

/// A terminal that takes no more text holds up a notice, not the signs of life.
#[test]
fn a_notice_that_is_not_read_does_not_hold_up_the_job() {
    let port = reserve_port();
    let mut all = Way::Tcp.job_options(2, port.port);
    let (reads, unread) = std::sync::mpsc::channel::<()>();
    let unread = Arc::new(Mutex::new(unread));
    for options in &mut all {
        options.deadlines.notice = Duration::from_millis(200);
        options.deadlines.heartbeat = Duration::from_millis(200);
        options.deadlines.silence = Duration::from_millis(1500);
        let unread = Arc::clone(&unread);
        // Until the test is over.
        options.notice = Some(Arc::new(move |_: &str| {
            let _ = unread.lock().unwrap().recv();
        }));
    }
    let ends = Way::Tcp.join_all(all).into_iter();
    let ranks: Vec<_> =
        ends.map(|transport| Communicator::new(transport, CommOptions::default())).collect();
    let answers = on_all(&ranks, |rank| {
        if rank.rank().0 == 1 {
            let _busy = rank.busy("saves a checkpoint");
            std::thread::sleep(Duration::from_millis(3000));
        }
        rank.barrier()
    });
    drop(reads);
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
}

/// Rank 0 waits in the middle of its work for rank 1, which never comes: that is no reason to wait
/// for ever.
fn a_busy_rank_that_waits_itself_excuses_no_one(way: Way) {
    let ranks = job(way, &Arc::default());
    let begin = Instant::now();
    let answers = on_all(&ranks, |rank| {
        let _busy = rank.busy("saves a checkpoint");
        match rank.rank().0 {
            1 => {
                drop(_busy);
                std::thread::sleep(DEADLINE * 3);
                rank.check()
            }
            _ => rank.barrier(),
        }
    });
    assert!(begin.elapsed() < DEADLINE * 4, "{:?}", begin.elapsed());
    for answer in answers {
        let error = answer.expect_err("rank 1 has not come");
        let named = matches!(&error, CommError::Timeout { culprit, .. } if culprit.0 == 1);
        assert!(named, "{error}");
    }
}
