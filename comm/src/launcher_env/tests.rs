use super::*;

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

fn launch(pairs: &[(&str, &str)]) -> Launch {
    parse(&map(pairs)).expect("a launch").expect("somebody has launched it")
}

fn refusal(pairs: &[(&str, &str)]) -> String {
    parse(&map(pairs)).expect_err("a refusal").to_string()
}

const TORCHRUN: &[(&str, &str)] = &[
    ("RANK", "5"),
    ("WORLD_SIZE", "8"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "4"),
    ("GROUP_RANK", "1"),
    ("MASTER_ADDR", "node-a"),
    ("MASTER_PORT", "29500"),
    ("TORCHELASTIC_RUN_ID", "none"),
    ("TORCHELASTIC_RESTART_COUNT", "0"),
];
const OPEN_MPI: &[(&str, &str)] = &[
    ("OMPI_COMM_WORLD_RANK", "2"),
    ("OMPI_COMM_WORLD_SIZE", "4"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "2"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
    ("OMPI_UNIVERSE_SIZE", "8"),
    ("PMIX_RANK", "2"),
    ("PMIX_NAMESPACE", "3341352961"),
];
const SLURM: &[(&str, &str)] = &[
    ("SLURM_PROCID", "6"),
    ("SLURM_NTASKS", "10"),
    ("SLURM_STEP_NUM_TASKS", "10"),
    ("SLURM_LOCALID", "2"),
    ("SLURM_NODEID", "1"),
    ("SLURM_STEP_TASKS_PER_NODE", "4(x2),2"),
    ("SLURM_STEP_NODELIST", "gnode[10,20-22]"),
    ("SLURM_JOB_ID", "4711"),
    ("SLURM_STEP_ID", "0"),
];

#[test]
fn nobody_launched_it() {
    assert_eq!(parse(&map(&[("HOME", "/root"), ("MASTER_ADDR", "x")])).unwrap(), None);
    assert_eq!(parse(&map(&[("RANK", ""), ("HEADLONG_SECRET", "s")])).unwrap(), None);
}

#[test]
fn our_own_names() {
    let found = launch(&[
        ("HEADLONG_RANK", "1"),
        ("HEADLONG_WORLD_SIZE", "2"),
        ("HEADLONG_LOCAL_RANK", "1"),
        ("HEADLONG_LOCAL_SIZE", "2"),
        ("HEADLONG_MASTER_PORT", "4000"),
        ("HEADLONG_JOB", "a"),
        ("HEADLONG_SECRET", "xyz"),
    ]);
    assert_eq!((found.launcher, found.rank, found.world_size), (Launcher::Headlong, Rank(1), 2));
    assert_eq!((found.master_host.as_str(), found.master_port), ("127.0.0.1", 4000));
    assert_eq!((found.job.as_str(), &found.secret), ("a", &SecretSource::Value("xyz".into())));
    assert!(found.remarks.is_empty(), "{:?}", found.remarks);
    assert!(!format!("{found:?}").contains("xyz"), "a secret is never printed");
}

#[test]
fn torchrun() {
    let found = launch(TORCHRUN);
    assert_eq!((found.launcher, found.rank, found.world_size), (Launcher::Torchrun, Rank(5), 8));
    assert_eq!((found.local_rank, found.local_size), (Some(1), Some(4)));
    assert_eq!((found.master_host.as_str(), found.master_port), ("node-a", 29500));
    assert_eq!((found.job.as_str(), &found.secret), ("none.0", &SecretSource::None));
}

/// Where torchrun's agent listens at MASTER_PORT itself, another port is derived, equal on all ranks.
#[test]
fn torchrun_with_its_store_at_the_port() {
    let with = |rank: &'static str| {
        let mut pairs = TORCHRUN.to_vec();
        pairs[0] = ("RANK", rank);
        pairs.push(("TORCHELASTIC_USE_AGENT_STORE", "True"));
        launch(&pairs)
    };
    let (one, other) = (with("1"), with("7"));
    assert_eq!(one.master_port, other.master_port);
    assert!((20_000..30_000).contains(&one.master_port), "{}", one.master_port);
    assert_ne!(one.master_port, 29500);
    assert!(one.remarks[0].contains("torchrun's own store listens at 29500"), "{:?}", one.remarks);
}

/// Kubeflow and people by hand give no local ranks.
#[test]
fn torchrun_names_without_local_ranks() {
    let found =
        launch(&TORCHRUN.iter().filter(|(name, _)| !name.starts_with("LOCAL")).copied().collect::<Vec<_>>());
    assert_eq!((found.local_rank, found.local_size), (None, None));
}

#[test]
fn open_mpi_on_one_machine() {
    let found = launch(OPEN_MPI);
    assert_eq!((found.launcher, found.rank, found.world_size), (Launcher::OpenMpi, Rank(2), 4));
    assert_eq!((found.master_host.as_str(), found.job.as_str()), ("127.0.0.1", "3341352961"));
    assert!((20_000..30_000).contains(&found.master_port));
}

#[test]
fn open_mpi_on_several_machines_needs_an_address() {
    let mut pairs = OPEN_MPI.to_vec();
    pairs[3] = ("OMPI_COMM_WORLD_LOCAL_SIZE", "3");
    let text = refusal(&pairs);
    assert!(text.contains("HEADLONG_MASTER_ADDR") && text.contains("Open MPI"), "{text}");
    pairs.push(("MASTER_ADDR", "10.0.0.7"));
    assert_eq!(launch(&pairs).master_host, "10.0.0.7");
}

#[test]
fn mpich_intel_and_cray() {
    let intel = [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "1"), ("MPI_LOCALNRANKS", "2")];
    let cray = [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("PMI_LOCAL_RANK", "1"), ("PMI_LOCAL_SIZE", "2")];
    assert_eq!((launch(&intel).local_rank, launch(&intel).master_port), (Some(1), DEFAULT_PORT));
    assert_eq!((launch(&cray).launcher, launch(&cray).world_size), (Launcher::Pmi, 2));
}

#[test]
fn pmix_does_not_say_how_many() {
    let pairs = [("PMIX_RANK", "1"), ("PMIX_NAMESPACE", "slurm.pmix.1.0")];
    assert!(refusal(&pairs).contains("HEADLONG_WORLD_SIZE"));
    let more = [pairs[0], pairs[1], ("HEADLONG_WORLD_SIZE", "2"), ("HEADLONG_MASTER_ADDR", "a")];
    assert_eq!((launch(&more).launcher, launch(&more).world_size), (Launcher::Pmix, 2));
}

#[test]
fn slurm_step() {
    let found = launch(SLURM);
    assert_eq!((found.launcher, found.rank, found.world_size), (Launcher::Slurm, Rank(6), 10));
    assert_eq!((found.local_rank, found.local_size), (Some(2), Some(4)));
    assert_eq!((found.master_host.as_str(), found.job.as_str()), ("gnode10", "4711.0"));
}

/// srun with PMIx: the size comes from Slurm.
#[test]
fn slurm_beside_pmix() {
    let mut pairs = SLURM.to_vec();
    pairs.extend([("PMIX_RANK", "6"), ("PMIX_NAMESPACE", "slurm.pmix.4711.0")]);
    assert_eq!(launch(&pairs).launcher, Launcher::Slurm);
}

/// The trap: a batch script without srun sees the job's variables, but is one process.
#[test]
fn slurm_batch_script_without_srun_is_alone() {
    let batch =
        [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "10"), ("SLURM_JOB_ID", "4711"), ("SLURM_LOCALID", "0")];
    assert_eq!(parse(&map(&batch)).unwrap(), None);
}

#[test]
fn precedence_is_said() {
    let mut pairs = TORCHRUN.to_vec();
    pairs.extend(SLURM);
    pairs.extend(OPEN_MPI);
    let found = launch(&pairs);
    assert_eq!(found.launcher, Launcher::Torchrun);
    let remarks = found.remarks.join("\n");
    assert!(
        remarks.contains("Open MPI are present (they say rank 2 of 4); those of torchrun win"),
        "{remarks}"
    );
    assert!(remarks.contains("Slurm are present"), "{remarks}");
    pairs.extend([("HEADLONG_RANK", "0"), ("HEADLONG_WORLD_SIZE", "3")]);
    assert_eq!((launch(&pairs).launcher, launch(&pairs).world_size), (Launcher::Headlong, 3));
}

#[test]
fn half_sets_and_contradictions_are_named() {
    let cases: &[(&[(&str, &str)], &str)] = &[
        (&[("RANK", "0")], "WORLD_SIZE: is not set, but RANK is"),
        (&[("HEADLONG_RANK", "0")], "HEADLONG_WORLD_SIZE: is not set, but HEADLONG_RANK is"),
        (&[("HEADLONG_WORLD_SIZE", "2")], "HEADLONG_RANK: is not set, but HEADLONG_WORLD_SIZE is"),
        (&[("HEADLONG_LOCAL_RANK", "0")], "HEADLONG_RANK: is not set"),
        (&[("OMPI_COMM_WORLD_RANK", "0")], "OMPI_COMM_WORLD_SIZE: is not set"),
        (&[("PMI_RANK", "0")], "PMI_SIZE: is not set"),
        (&[("RANK", "2"), ("WORLD_SIZE", "2")], "RANK: is 2, but WORLD_SIZE is 2"),
        (&[("RANK", "-1"), ("WORLD_SIZE", "2")], "RANK: is `-1`, expected a whole number"),
        (&[("RANK", "0"), ("WORLD_SIZE", "0")], "RANK: is 0, but WORLD_SIZE is 0"),
        (&[("RANK", "0"), ("WORLD_SIZE", "2")], "MASTER_ADDR: is not set"),
        (
            &[("RANK", "0"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "2"), ("LOCAL_WORLD_SIZE", "2")],
            "LOCAL_RANK: is 2, but LOCAL_WORLD_SIZE is 2",
        ),
        (
            &[("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "3")],
            "LOCAL_WORLD_SIZE: is 3, more than WORLD_SIZE = 2",
        ),
        (
            &[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "70000")],
            "MASTER_PORT: is 70000, expected a port",
        ),
        (
            &[("HEADLONG_RANK", "0"), ("HEADLONG_WORLD_SIZE", "2"), ("HEADLONG_LOCAL_RANK", "0")],
            "HEADLONG_LOCAL_SIZE: is not set, but HEADLONG_LOCAL_RANK is",
        ),
        (
            &[("RANK", "0"), ("WORLD_SIZE", "1"), ("HEADLONG_SECRET", "a"), ("HEADLONG_SECRET_FILE", "b")],
            "HEADLONG_SECRET_FILE: is set beside HEADLONG_SECRET",
        ),
    ];
    for (pairs, expected) in cases {
        let text = refusal(pairs);
        assert!(text.starts_with(expected), "{pairs:?}: {text}");
    }
}

#[test]
fn slurm_lists() {
    let hosts = [
        ("gnode[10,20-22]", Some("gnode10")),
        ("gnode[007-010],login1", Some("gnode007")),
        ("a,b[1-2]", Some("a")),
        ("node1", Some("node1")),
        ("rack[3-4]-ib,x", Some("rack3-ib")),
        ("rack[1-2]n[1-8]", None),
        ("gnode[", None),
        ("", None),
    ];
    for (list, first) in hosts {
        assert_eq!(slurm::first_of(list).as_deref(), first, "{list}");
    }
    for (node, tasks) in [("0", Some(4)), ("2", Some(4)), ("3", Some(2)), ("4", None)] {
        let environment = map(&[("SLURM_STEP_TASKS_PER_NODE", "4(x3),2"), ("SLURM_NODEID", node)]);
        assert_eq!(slurm::tasks_on_node(&Variables::new(&environment)).ok().flatten(), tasks, "node {node}");
    }
}

#[test]
fn brackets_of_an_ipv6_address_are_taken_off() {
    let found = launch(&[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "[fd00::1]")]);
    assert_eq!(found.master_host, "fd00::1");
}
