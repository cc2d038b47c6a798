//! What a process hears about the place that its launcher has given it: notes, refusals, and the
//! secret that keeps others out.

#![cfg(test)]

use crate::run_support::{Place, digest};
use std::ffi::OsStr;
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Command, Output, Stdio};

/// How a process has ended, and what it has said on standard error.
struct Said {
    code: Option<i32>,
    text: String,
}

fn headlong(arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headlong"));
    command.args(arguments).envs(variables.iter().copied()).stdin(Stdio::null());
    command
}

fn said(output: Output) -> Said {
    Said { code: output.status.code(), text: String::from_utf8(output.stderr).expect("text") }
}

fn run(arguments: &[&str], variables: &[(&str, &str)]) -> Said {
    said(headlong(arguments, variables).output().expect("headlong starts"))
}

/// A port that was free a moment ago.
fn free_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address").port().to_string()
}

/// Both ranks of a job of two run `arguments`, each with the variables that `of_rank` gives; what
/// rank 0 and rank 1 say.
fn both(arguments: &[&str], of_rank: impl Fn(usize, &mut Command)) -> [Said; 2] {
    let ranks = [0, 1].map(|rank| {
        let mut command = headlong(arguments, &[]);
        of_rank(rank, &mut command);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("headlong starts")
    });
    ranks.map(|child| said(child.wait_with_output().expect("an own child")))
}

const BARRIER: [&str; 8] = ["bench", "barrier", "--backend", "tcp", "-n", "5", "-w", "1"];

/// Set by hand, as little as is needed.
fn by_hand(command: &mut Command, rank: usize, port: &str) {
    command.env("HEADLONG_RANK", rank.to_string()).env("HEADLONG_WORLD_SIZE", "2");
    command.env("HEADLONG_MASTER_ADDR", "127.0.0.1").env("HEADLONG_MASTER_PORT", port);
}

#[test]
fn a_forgotten_srun_is_said() {
    let place = Place::new("rows.txt");
    let data = place.train.to_str().expect("text");
    let train = ["train", "--preset", "tiny", "--data", data, "--dry-run"];
    let slurm = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_JOB_ID", "7")];
    let Said { code, text } = run(&train, &slurm);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("note: this is a Slurm job of 4 tasks, but srun has not started"),
        "{text}"
    );
}

#[test]
fn training_says_how_its_ranks_came_together() {
    let (place, port) = (Place::new("rows.txt"), free_port());
    let train = place.train().with(&["--steps", "3", "--set", "sum_blocks=2"]);
    let arguments: Vec<&str> = train.arguments().iter().map(String::as_str).collect();
    let [first, second] = both(&arguments, |rank, command| {
        by_hand(command, rank, &port);
        // torchrun's names say something else, and lose.
        command.envs([("RANK", "2"), ("WORLD_SIZE", "5"), ("MASTER_ADDR", "node-a")]);
    });
    assert_eq!((first.code, second.code), (Some(0), Some(0)), "{}{}", first.text, second.text);
    for words in [
        "note: variables of torchrun are present (they say rank 2 of 5); those of headlong launch \
         win",
        "note: no secret is set: any process of this user on this machine can join the job",
    ] {
        assert!(first.text.contains(words), "{}", first.text);
        assert!(!second.text.contains(words), "said once: {}", second.text);
    }
}

/// As where machines differ and each chooses what is fastest on it. Sums travel in bf16, so that it
/// takes some steps until the orders show.
#[test]
fn the_order_of_sums_that_rank_0_chooses_is_that_of_all() {
    let place = Place::new("rows.txt");
    let train = place.train().with(&["--steps", "40", "--precision", "bf16"]);
    let outcome = |orders: [&str; 2]| {
        let (log, port) = (place.path(&orders.concat()), free_port());
        let arguments: Vec<&str> = train.arguments().iter().map(String::as_str).collect();
        let ranks = both(&arguments, |rank, command| {
            by_hand(command, rank, &port);
            command.arg("--set").arg(format!("train.bf16_sums={:?}", orders[rank]));
            if rank == 0 {
                command.arg("--log-json").arg(&log);
            }
        });
        ranks.iter().for_each(|said| assert_eq!(said.code, Some(0), "{}", said.text));
        digest(&log)
    };
    assert_eq!(outcome(["pairs", "tiles"]), outcome(["pairs", "pairs"]));
    assert_ne!(outcome(["tiles", "tiles"]), outcome(["pairs", "pairs"]));
}

#[test]
fn a_derived_port_is_said() {
    let run_id = free_port();
    let [first, second] = both(&BARRIER, |rank, command| {
        let rank = rank.to_string();
        let torchrun = [
            ("RANK", &*rank),
            ("WORLD_SIZE", "2"),
            ("LOCAL_RANK", &*rank),
            ("LOCAL_WORLD_SIZE", "2"),
            ("MASTER_ADDR", "node-a.invalid"),
            ("MASTER_PORT", "29500"),
            ("TORCHELASTIC_RUN_ID", &*run_id),
            ("TORCHELASTIC_USE_AGENT_STORE", "True"),
        ];
        command.envs(torchrun);
    });
    assert_eq!((first.code, second.code), (Some(0), Some(0)), "{}{}", first.text, second.text);
    let words = "note: torchrun's own store listens at 29500: the rendezvous is at port 2";
    assert!(first.text.contains(words), "{}", first.text);
}

/// A job that other machines can reach has a secret, or its user says that it needs none.
#[test]
fn beyond_this_machine_no_one_trains_without_a_secret_by_accident() {
    let place = Place::new("rows.txt");
    let data = place.train.to_str().expect("text");
    // An address for documents: of no machine.
    let far = [
        ("HEADLONG_RANK", "0"),
        ("HEADLONG_WORLD_SIZE", "2"),
        ("HEADLONG_MASTER_ADDR", "192.0.2.1"),
    ];
    let commands: [&[&str]; 2] = [&["train", "--preset", "tiny", "--data", data], &BARRIER];
    for command in commands {
        let Said { code, text } = run(command, &far);
        assert_eq!(code, Some(2), "{text}");
        for words in [
            "`HEADLONG_SECRET`: is not set, and rank 0 is at 192.0.2.1",
            "`headlong launch`",
            "HEADLONG_SECRET_FILE",
            "--insecure",
        ] {
            assert!(text.contains(words), "{text}");
        }
        let Said { code, text } = run(&[command, &["--insecure"]].concat(), &far);
        assert!(
            code == Some(3) && text.contains("not an address of this machine"),
            "{code:?} {text}"
        );
        assert!(text.contains(": HEADLONG_MASTER_ADDR must be"), "{text}");
    }
    let by_key = [commands[0], &["--set", "comm.insecure=true"]].concat();
    assert_eq!(run(&by_key, &far).code, Some(3));
    let doctor = headlong(&["doctor"], &far).output().expect("headlong starts");
    let answer = String::from_utf8(doctor.stdout).expect("text");
    assert!(
        answer.contains("FAIL  secret") && answer.contains("is not set, and rank 0 is at"),
        "{answer}"
    );
}

/// `--insecure` is said aloud.
#[test]
fn a_job_that_anybody_may_join_says_so() {
    // Whatever name this machine has in its network, it takes it for no loopback.
    let addresses =
        Command::new("hostname").arg("-I").output().map(|output| output.stdout).unwrap_or_default();
    let addresses = String::from_utf8(addresses).expect("text");
    let Some(address) = addresses.split_whitespace().next() else {
        println!("skipped, because this machine has no address but its loopback");
        return;
    };
    let port = free_port();
    let [first, second] = both(&[&BARRIER[..], &["--insecure"]].concat(), |rank, command| {
        by_hand(command, rank, &port);
        command.env("HEADLONG_MASTER_ADDR", address);
    });
    assert_eq!((first.code, second.code), (Some(0), Some(0)), "{}{}", first.text, second.text);
    let words = format!(
        "note: no secret is set, as asked for (--insecure): anyone who can reach \
         {address}:{port} can join"
    );
    assert!(first.text.contains(&words), "{}", first.text);
}

/// A secret that is set is the secret, whatever bytes it has, or an error: never no secret.
#[test]
fn a_secret_that_is_set_is_never_no_secret() {
    let port = free_port();
    let raw = OsStr::from_bytes(b"\xff\xfe sixteen bytes and more \x80");
    let [first, second] = both(&BARRIER, |rank, command| {
        by_hand(command, rank, &port);
        command.env("HEADLONG_SECRET", raw);
    });
    assert_eq!((first.code, second.code), (Some(0), Some(0)), "{}{}", first.text, second.text);
    assert!(!first.text.contains("no secret"), "{}", first.text);
    let folder = tempfile::tempdir().expect("a folder");
    let none = folder.path().join("none");
    let refused: [(&str, &[u8], &str); 8] = [
        ("HEADLONG_SECRET", b"", "is set, but empty"),
        ("HEADLONG_SECRET", b" \t ", "is set, but empty"),
        ("HEADLONG_SECRET", b"x", "has 1 byte, expected at least 16"),
        ("HEADLONG_SECRET_FILE", b"", "is set, but empty"),
        ("HEADLONG_SECRET_FILE", b"/no such\xff file", "cannot be read"),
        ("HEADLONG_SECRET_FILE", none.as_os_str().as_bytes(), "cannot be read"),
        ("HEADLONG_SECRET_FILE", folder.path().as_os_str().as_bytes(), "is a folder"),
        ("HEADLONG_SECRET_FILE", b"/proc/self/status", "has mode 444"),
    ];
    for (name, value, words) in refused {
        let mut command = headlong(&BARRIER, &[]);
        by_hand(&mut command, 0, &port);
        let Said { code, text } =
            said(command.env(name, OsStr::from_bytes(value)).output().expect("starts"));
        assert!(
            code == Some(2) && text.contains(name) && text.contains(words),
            "{value:?}: {code:?} {text}"
        );
    }
}

/// What cannot work in the environment is wrong usage, not a failure of the network.
#[test]
fn settings_of_the_environment_that_cannot_work_end_with_2() {
    let place = Place::new("rows.txt");
    let data = place.train.to_str().expect("text");
    let train = ["train", "--preset", "tiny", "--data", data];
    let cases: [(&[(&str, &str)], &str); 6] = [
        (
            &[("HEADLONG_RANK", "0"), ("HEADLONG_WORLD_SIZE", "-1")],
            "`HEADLONG_WORLD_SIZE`: is `-1`",
        ),
        (&[("HEADLONG_RANK", "5"), ("HEADLONG_WORLD_SIZE", "2")], "`HEADLONG_RANK`: is 5, but"),
        (&[("HEADLONG_RANK", "0"), ("HEADLONG_WORLD_SIZE", "5000000000")], "from 0 to 4294967295"),
        (
            &[
                ("HEADLONG_RANK", "0"),
                ("HEADLONG_WORLD_SIZE", "2"),
                ("HEADLONG_MASTER_ADDR", "a"),
                ("HEADLONG_MASTER_PORT", "70000"),
            ],
            "`HEADLONG_MASTER_PORT`: is `70000`, expected a port from 1 to 65535",
        ),
        (&[("RANK", "0")], "`WORLD_SIZE`: is not set, but RANK is"),
        (&[("HEADLONG_LAUNCHER_PID", "launcher")], "`HEADLONG_LAUNCHER_PID`: is `launcher`"),
    ];
    for (variables, words) in cases {
        for command in [&train[..], &BARRIER] {
            let Said { code, text } = run(command, variables);
            assert!(code == Some(2) && text.contains(words), "{variables:?}: {code:?} {text}");
        }
    }
}

/// A number that no clock can measure is refused by its name wherever it may be given.
#[test]
fn times_that_nothing_can_measure_are_refused() {
    for value in ["1e300", "1.9e19", "1e10", "0", "-1", "1e-300", "nan"] {
        let set = format!("comm.deadline_s={value}");
        let bench = [&BARRIER[..], &["--deadline-s", value]].concat();
        let launch = ["launch", "-n", "1", "--grace-s", value, "--", "doctor"];
        let silence = format!("comm.silence_s={value}");
        let rendezvous = format!("comm.rendezvous_s={value}");
        let commands: [(&[&str], &str); 6] = [
            (&["train", "--preset", "tiny", "--set", &set, "--dry-run"], "comm.deadline_s"),
            (&["plan", "--preset", "tiny", "--set", &set], "comm.deadline_s"),
            (&["plan", "--preset", "tiny", "--set", &silence], "comm.silence_s"),
            (&["plan", "--preset", "tiny", "--set", &rendezvous], "comm.rendezvous_s"),
            (&bench, "--deadline-s"),
            (&launch, "--grace-s"),
        ];
        for (command, key) in commands {
            let negative = value.starts_with('-') && key.starts_with("--");
            let Said { code, text } = run(command, &[]);
            assert_eq!(code, Some(2), "{command:?}: {text}");
            let words = match value {
                "nan" if key.starts_with("comm.") => format!("`{key}`: expected a finite number"),
                _ => format!("`{key}`: expected seconds above 0, at most 1000000000"),
            };
            assert!(negative || text.contains(&words), "{command:?}: {text}");
        }
    }
}

/// Under a launcher that has done everything right, the doctor has nothing to say against it.
#[test]
fn the_doctor_has_no_warning_for_a_healthy_launcher() {
    let id = free_port();
    let slurm = |rank: &str| {
        [
            ("SLURM_PROCID", rank.to_owned()),
            ("SLURM_NTASKS", "2".to_owned()),
            ("SLURM_STEP_NUM_TASKS", "2".to_owned()),
            ("SLURM_LOCALID", rank.to_owned()),
            ("SLURM_NODEID", "0".to_owned()),
            ("SLURM_STEP_TASKS_PER_NODE", "2".to_owned()),
            ("SLURM_STEP_NODELIST", "gnode10".to_owned()),
            ("SLURM_JOB_ID", id.clone()),
            ("SLURM_STEP_ID", "0".to_owned()),
            ("PMI_RANK", rank.to_owned()),
            ("PMI_SIZE", "2".to_owned()),
            ("PMI_JOBID", id.clone()),
        ]
    };
    let ranks = [0, 1].map(|rank| {
        let mut command = headlong(&["doctor"], &[]);
        command.envs(slurm(&rank.to_string())).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("headlong starts")
    });
    let [first, _] = ranks.map(|child| child.wait_with_output().expect("an own child"));
    let answer = String::from_utf8(first.stdout).expect("text");
    for words in [
        "OK    launcher       PMI (MPICH, Intel MPI): rank 0 of 2;",
        "OK    secret         none: processes of this user",
    ] {
        assert!(answer.contains(words), "{answer}{}", String::from_utf8_lossy(&first.stderr));
    }
}
