//! Two nodes in one machine: network namespaces joined by a pair of virtual cables, with delay and
//! loss where the kernel has netem, and a partition in the middle of a job.
//!
//! It needs `unshare`, `nsenter` and `ip`, and a kernel that gives user namespaces to anyone who
//! asks; else it says what is missing.

use crate::tcp_support::rank_program;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Longer than every deadline of the job together.
const LIMIT: Duration = Duration::from_secs(30);
/// Without a sign of life for so long, a rank is lost.
const SILENCE_MS: &str = "2000";
const RANKS: usize = 4;

/// A process that keeps a namespace.
struct Namespace {
    keeper: Child,
}

impl Namespace {
    fn keep(mut command: Command) -> Result<Self, String> {
        let command = command.args(["sh", "-c", "echo ready; exec sleep 120"]);
        let keeper = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut keeper = keeper.map_err(|error| error.to_string())?;
        let mut line = String::new();
        let lines = keeper.stdout.take().ok_or("no pipe")?;
        let read = BufReader::new(lines).read_line(&mut line);
        let namespace = Self { keeper };
        match read.is_ok() && line.trim() == "ready" {
            true => Ok(namespace),
            false => Err("the system gives no namespaces to this user".into()),
        }
    }

    /// A command inside.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--preserve-credentials", "-U", "-n", "-t", &self.keeper.id().to_string()]);
        command.args(words);
        command
    }

    fn run(&self, line: &str) -> Result<(), String> {
        let words: Vec<&str> = line.split(' ').collect();
        let output = self.command(&words).output().map_err(|error| error.to_string())?;
        match output.status.success() {
            true => Ok(()),
            false => Err(format!("{line}: {}", String::from_utf8_lossy(&output.stderr).trim())),
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

/// Two nodes, 10.77.0.1 and 10.77.0.2.
struct Nodes([Namespace; 2]);

impl Nodes {
    fn new() -> Result<Self, String> {
        let mut outer = Command::new("unshare");
        outer.arg("-Urn");
        let first = Namespace::keep(outer)?;
        let mut inner = first.command(&["unshare"]);
        inner.arg("-n");
        let second = Namespace::keep(inner)?;
        first.run("ip link add cable0 type veth peer name cable1")?;
        first.run(&format!("ip link set cable1 netns {}", second.keeper.id()))?;
        let nodes = Self([first, second]);
        for (index, node) in nodes.0.iter().enumerate() {
            node.run(&format!("ip addr add 10.77.0.{}/24 dev cable{index}", index + 1))?;
            node.run(&format!("ip link set cable{index} up"))?;
            node.run("ip link set lo up")?;
        }
        Ok(nodes)
    }

    /// What `tc` does to the packets of both directions.
    fn netem(&self, what: &str) -> Result<(), String> {
        let mut nodes = self.0.iter().enumerate();
        nodes.try_for_each(|(index, node)| {
            node.run(&format!("tc qdisc replace dev cable{index} root netem {what}"))
        })
    }

    /// Nothing passes any more, in both directions, and no rank learns of it.
    fn part(&self) {
        if self.netem("loss 100%").is_err() {
            self.0[1].run("ip link set cable1 down").expect("a cable that is there can be pulled");
        }
    }

    /// Ranks 0 and 1 on the first node, 2 and 3 on the second.
    fn start(&self, arguments: &[&str]) -> Job {
        let spawn = |rank: usize| {
            let mut command = self.0[rank / 2].command(&[]);
            command.arg(rank_program());
            command.args([
                "--rendezvous-ms",
                "20000",
                "--operation-ms",
                "15000",
                "--heartbeat-ms",
                "200",
            ]);
            command.args(["--silence-ms", SILENCE_MS]).args(arguments);
            command
                .env("HEADLONG_RANK", rank.to_string())
                .env("HEADLONG_WORLD_SIZE", RANKS.to_string());
            command.env("HEADLONG_MASTER_ADDR", "10.77.0.1").env("HEADLONG_MASTER_PORT", "29577");
            command.env("HEADLONG_SECRET", "the secret of the test");
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a rank starts")
        };
        let mut ranks: Vec<Child> = (0..RANKS).map(spawn).collect();
        let lines = ranks[0].stdout.take().map(BufReader::new).expect("a pipe");
        Job { ranks, lines }
    }
}

struct Job {
    ranks: Vec<Child>,
    lines: BufReader<ChildStdout>,
}

impl Job {
    fn wait_for(&mut self, words: &str) {
        let mut line = String::new();
        while !line.contains(words) {
            line.clear();
            assert!(
                self.lines.read_line(&mut line).expect("text") > 0,
                "rank 0 has ended before `{words}`"
            );
        }
    }

    /// Code and errors of every rank, which must end within `limit`.
    fn outcomes(mut self, limit: Duration) -> Vec<(Option<i32>, String)> {
        let begin = Instant::now();
        let mut rest = String::new();
        let mut outcomes = Vec::new();
        for rank in &mut self.ranks {
            while rank.try_wait().expect("an own child").is_none() {
                assert!(begin.elapsed() < limit, "a rank has not ended within {limit:?}");
                std::thread::sleep(Duration::from_millis(5));
            }
            let code = rank.wait().expect("an own child").code();
            let mut errors = String::new();
            rank.stderr.take().expect("a pipe").read_to_string(&mut errors).expect("text");
            outcomes.push((code, errors));
        }
        self.lines.read_to_string(&mut rest).expect("text");
        outcomes
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            let _ = rank.kill();
            let _ = rank.wait();
        }
    }
}

/// Two nodes, or None with a line that says why there are none.
fn nodes() -> Option<Nodes> {
    Nodes::new()
        .inspect_err(|reason| {
            println!("skipped, because network namespaces cannot be made: {reason}")
        })
        .ok()
}

/// In a namespace of its own, as of a container without a network, nothing leads to 127.0.0.1: both
/// sides say so soon.
#[test]
fn a_machine_without_its_loopback_is_told_so_at_once() {
    let mut outer = Command::new("unshare");
    outer.arg("-Urn");
    let namespace = match Namespace::keep(outer) {
        Ok(namespace) => namespace,
        Err(reason) => {
            return println!("skipped, because network namespaces cannot be made: {reason}");
        }
    };
    let begin = Instant::now();
    for rank in ["0", "1"] {
        let mut command = namespace.command(&[]);
        command.arg(rank_program());
        command.env("HEADLONG_RANK", rank).env("HEADLONG_WORLD_SIZE", "2");
        command
            .env("HEADLONG_MASTER_ADDR", "127.0.0.1")
            .env("HEADLONG_SECRET", "the secret of the test");
        let output = command.output().expect("a rank starts");
        let errors = String::from_utf8(output.stderr).expect("text");
        assert!(
            errors.contains("no loopback interface that is up: as root, `ip link set lo up`"),
            "{errors}"
        );
        assert_eq!(output.status.code(), Some(3), "{errors}");
    }
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
}

#[test]
fn a_slow_and_lossy_network_only_takes_longer() {
    let Some(nodes) = nodes() else { return };
    if let Err(reason) = nodes.netem("delay 5ms loss 1%") {
        println!("delay and loss skipped, because {reason}");
    }
    let job = nodes.start(&["--steps", "20", "--elements", "5000"]);
    for (rank, (code, errors)) in job.outcomes(LIMIT).into_iter().enumerate() {
        assert_eq!(code, Some(0), "rank {rank}: {errors}");
    }
}

#[test]
fn a_partition_names_a_rank_of_the_lost_node() {
    let Some(nodes) = nodes() else { return };
    let _ = nodes.netem("delay 5ms loss 1%");
    let mut job = nodes.start(&["--steps", "100000", "--elements", "1000", "--step-ms", "1"]);
    job.wait_for("step 5");
    nodes.part();
    // The silence, a second for the words between the ranks of a node, and time for a busy machine.
    let outcomes = job.outcomes(Duration::from_millis(2000 + 1000 + 7000));
    for (rank, (code, errors)) in outcomes.iter().enumerate() {
        assert_eq!(*code, Some(3), "rank {rank}: {errors}");
        // The second node's ranks cannot reach rank 0, which holds the job together: it is whom
        // they have lost.
        let lost: &[usize] = if rank < 2 { &[2, 3] } else { &[0] };
        let names = lost.iter().any(|lost| errors.contains(&format!("rank {lost} ")));
        assert!(names, "rank {rank}: {errors}");
    }
    // Ranks that still reach each other say the same.
    assert_eq!(outcomes[0].1, outcomes[1].1);
}
