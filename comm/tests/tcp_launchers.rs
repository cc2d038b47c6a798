//! Launchers that are installed here start jobs that come together.

use crate::tcp_support;
use std::process::{Command, Output};

/// Whether a program can be run at all.
fn is_installed(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

#[test]
fn under_a_real_mpirun() {
    if !is_installed("mpirun") {
        eprintln!("skipped, because mpirun is absent: apt-get install openmpi-bin");
        return;
    }
    let (secret, port) = ("the secret of the test", tcp_support::reserve_port());
    let Output { status, stdout, stderr } = Command::new("mpirun")
        .args(["--allow-run-as-root", "--oversubscribe", "-n", "3"])
        .arg(tcp_support::rank_program())
        .args(["--steps", "5"])
        .env("HEADLONG_SECRET", secret)
        .env("HEADLONG_MASTER_PORT", port.port.to_string())
        .output()
        .expect("mpirun starts");
    let (out, errors) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{out}{errors}");
    for rank in 0..3 {
        assert!(out.contains(&format!("rank {rank}: started by Open MPI")), "{out}");
        assert!(out.contains(&format!("rank {rank}: joined 3 ranks on 1 nodes")), "{out}");
        assert!(out.contains(&format!("rank {rank}: done")), "{out}");
    }
    assert!(!out.contains(secret) && !errors.contains(secret), "no secret is printed");
}

/// One rank fails under mpirun: its reason is printed, and mpirun ends the job with its code.
#[test]
fn a_failure_under_a_real_mpirun() {
    if !is_installed("mpirun") {
        eprintln!("skipped, because mpirun is absent: apt-get install openmpi-bin");
        return;
    }
    let port = tcp_support::reserve_port();
    let program = tcp_support::rank_program();
    let Output { status, stderr, .. } = Command::new("mpirun")
        .args(["--allow-run-as-root", "--oversubscribe", "-n", "1"])
        .arg(&program)
        .args(["--steps", "50", ":", "-n", "1"])
        .arg(&program)
        .args(["--steps", "50", "--fail-at", "3"])
        .env("HEADLONG_SECRET", "the secret of the test")
        .env("HEADLONG_MASTER_PORT", port.port.to_string())
        .output()
        .expect("mpirun starts");
    let errors = String::from_utf8_lossy(&stderr);
    assert_eq!(status.code(), Some(3), "{errors}");
    assert!(errors.contains("rank 1 has failed: asked to fail at step 3"), "{errors}");
}
