//! Jobs made of some ranks of a job: they count their own ranks, and fail and end alone.

use crate::tcp_support::{job_options, reserve_port};
use headlong_comm::rendezvous::whole::{Part, Whole};
use headlong_comm::rendezvous::{JoinOptions, StillWanted};
use headlong_comm::{CommError, CommOptions, Communicator, Rank};
use std::sync::Arc;
use std::time::{Duration, Instant};

const FIRST: [Rank; 3] = [Rank(0), Rank(1), Rank(2)];
const SECOND: [Rank; 2] = [Rank(3), Rank(4)];

/// This rank's end of the part that it belongs to, once the whole job has said goodbye.
fn part_of(options: &JoinOptions) -> Result<Communicator, CommError> {
    let whole = Whole::join(options)?;
    let part = |name, ranks: &[Rank]| whole.part(&Part { name, ranks, ranks_per_node: 0 });
    let own = part("first", &FIRST)?.or(part("second", &SECOND)?);
    whole.close()?;
    Ok(Communicator::new(own.expect("each rank is of one part"), CommOptions::default()))
}

fn on_all<T: Send>(work: impl Fn(JoinOptions) -> T + Sync) -> Vec<T> {
    let port = reserve_port();
    let work = &work;
    std::thread::scope(|scope| {
        let all = job_options(5, port.port).into_iter();
        let threads: Vec<_> = all.map(|options| scope.spawn(move || work(options))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

#[test]
fn parts_count_their_own_ranks() {
    let sums = on_all(|options| {
        let part = part_of(&options)?;
        let mut sum = [part.rank().0 as u64 + 1, 1];
        part.all_reduce(&mut sum)?;
        part.close()?;
        Ok::<_, CommError>(sum)
    });
    let (first, second) = (Ok([6, 3]), Ok([3, 2]));
    assert_eq!(sums, [first.clone(), first.clone(), first, second.clone(), second]);
}

#[test]
fn what_ends_one_part_ends_no_other() {
    let outcomes = on_all(|options| {
        let rank = options.launch.rank;
        let part = part_of(&options)?;
        if rank == Rank(4) {
            // Dropped without a goodbye.
            return Ok(0);
        }
        let mut sum = [1_u64];
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(5));
            sum = [1];
            part.all_reduce(&mut sum).map_err(|error| error.in_whole(&SECOND))?;
        }
        part.close()?;
        Ok::<_, CommError>(sum[0])
    });
    assert_eq!(outcomes[..3], [Ok(3), Ok(3), Ok(3)]);
    let lost = outcomes[3].as_ref().expect_err("its only peer is gone");
    assert_eq!(lost.culprit(), Some(Rank(4)), "{lost}");
}

/// A rank that is lost before its part has come together ends all at once: no one waits for it as
/// long as ranks may take to come.
#[test]
fn a_rank_that_is_lost_meanwhile_is_not_waited_for() {
    let begin = Instant::now();
    let outcomes = on_all(|mut options| {
        options.deadlines.rendezvous = Duration::from_secs(60);
        if options.launch.rank != Rank(2) {
            return part_of(&options).map(drop);
        }
        let _whole = Whole::join(&options)?;
        // The others wait for this one by now.
        std::thread::sleep(Duration::from_millis(500));
        Ok::<_, CommError>(())
    });
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    let lost = outcomes.iter().filter_map(|outcome| outcome.as_ref().err());
    assert_eq!(lost.filter(|lost| lost.culprit() == Some(Rank(2))).count(), 4, "{outcomes:?}");
}

#[test]
fn who_is_wanted_no_more_comes_not_together() {
    let begin = Instant::now();
    let reason = || CommError::Rendezvous { reason: "no more".into() };
    let outcomes = on_all(|options| {
        if options.launch.rank == Rank(4) {
            return Ok(());
        }
        let still_wanted: Option<StillWanted> = Some(Arc::new(move || Err(reason())));
        let options = JoinOptions { still_wanted, ..options };
        headlong_comm::rendezvous::join(&options).map(drop)
    });
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
    assert_eq!(outcomes[0], Err(reason()));
    assert!(outcomes[1..4].iter().all(Result::is_err), "{outcomes:?}");
}
