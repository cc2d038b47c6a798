//! Processes with a device each exchange between their devices, and hear of one that is killed.

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

mod tcp_support;

fn start(rank: usize, size: usize, port: u16, arguments: &[&str]) -> Child {
    // The environment stays: where CUDA's libraries are is said there.
    Command::new(tcp_support::rank_program())
        .args(["--rendezvous-ms", "10000", "--heartbeat-ms", "100", "--silence-ms", "1000"])
        .args(["--operation-ms", "8000", "--elements", "5003", "--device", "0"])
        .args(arguments)
        .env("HEADLONG_RANK", rank.to_string())
        .env("HEADLONG_WORLD_SIZE", size.to_string())
        .env("HEADLONG_MASTER_ADDR", "127.0.0.1")
        .env("HEADLONG_MASTER_PORT", port.to_string())
        .env("HEADLONG_SECRET", "the secret of the test")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a rank starts")
}

/// Two processes on one GPU are refused by NCCL; two software devices are two devices.
fn has_a_software_device() -> bool {
    let there = headlong_device::cuda::testing::device().is_some_and(|device| device.is_software());
    if !there {
        println!(
            "skipped, because it needs a device of softcuda for each process (HEADLONG_CUDA_LIBS)"
        );
    }
    there
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Ways between the devices of processes, with what selects each.
const WAYS: [(&str, &[&str]); 4] = [
    ("peer memory", &[]),
    ("nccl", &["--nccl"]),
    ("hierarchical: peer memory, nccl", &["--ranks-per-node", "2"]),
    ("hierarchical: nccl", &["--ranks-per-node", "2", "--nccl"]),
];

#[test]
fn processes_exchange_between_their_devices() {
    if !has_a_software_device() {
        return;
    }
    for (name, way) in WAYS {
        let port = tcp_support::reserve_port();
        let arguments = [&["--steps", "5"], way].concat();
        let ranks: Vec<Child> = (0..4).map(|rank| start(rank, 4, port.port, &arguments)).collect();
        for (rank, child) in ranks.into_iter().enumerate() {
            let output = child.wait_with_output().unwrap();
            let text = text(&output);
            assert!(output.status.success(), "{name}, rank {rank}: {text}");
            let expected = format!(": {name}\n");
            assert!(text.contains(&expected) && text.contains("step 4"), "rank {rank}: {text}");
        }
    }
}

#[test]
fn a_killed_process_ends_the_others_within_seconds() {
    if !has_a_software_device() {
        return;
    }
    for (_, way) in WAYS {
        let port = tcp_support::reserve_port();
        let arguments = [&["--steps", "100000", "--step-ms", "2"], way].concat();
        let mut ranks: Vec<Child> =
            (0..4).map(|rank| start(rank, 4, port.port, &arguments)).collect();
        let mut victim = ranks.remove(1);
        let lines = BufReader::new(victim.stdout.take().unwrap()).lines();
        let reached = lines.map_while(Result::ok).any(|line| line.contains("step 3"));
        assert!(reached, "{way:?}: rank 1 has ended before its third step");
        let killed = Instant::now();
        kill_process(Pid::from_child(&victim), Signal::KILL).unwrap();
        victim.wait().unwrap();
        for (rank, child) in [0, 2, 3].into_iter().zip(ranks) {
            let output = child.wait_with_output().unwrap();
            let text = text(&output);
            assert_eq!(output.status.code(), Some(3), "{way:?}, rank {rank}: {text}");
            assert!(text.contains("rank 1"), "{way:?}, rank {rank}: {text}");
        }
        assert!(killed.elapsed() < Duration::from_secs(7), "{way:?}: {:?}", killed.elapsed());
    }
}
