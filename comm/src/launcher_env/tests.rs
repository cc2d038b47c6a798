use super::*;

fn map(pairs: &[(&str, &str)]) -> Environment {
    pairs.iter().map(|(name, value)| (name.to_string(), value.into())).collect()
}

fn launch(pairs: &[(&str, &str)]) -> Launch {
    parse(&map(pairs)).expect("a launch").launch().expect("it was launched")
}

/// The remarks of a process that no launcher has started.
fn single(pairs: &[(&str, &str)]) -> String {
    match parse(&map(pairs)).expect("nothing is wrong") {
        Place::Single { remarks } => texts(&remarks),
        place => panic!("{place:?}"),
    }
}

fn texts(remarks: &[Remark]) -> String {
    remarks.iter().map(|remark| format!("{remark}\n")).collect()
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
fn it_was_started_by_hand() {
    assert_eq!(single(&[("HOME", "/root"), ("MASTER_ADDR", "x")]), "");
    assert_eq!(single(&[("SLURM_NTASKS", "1"), ("HEADLONG_SECRET", "s")]), "");
}

/// What is set means something: never "not set".
#[test]
fn a_variable_that_is_set_but_cannot_be_used_is_an_error() {
    let good =
        [("HEADLONG_RANK", "0"), ("HEADLONG_WORLD_SIZE", "2"), ("HEADLONG_MASTER_ADDR", "a")];
    assert!(parse(&map(&good)).is_ok());
    let asked = [
        "HEADLONG_RANK",
        "HEADLONG_WORLD_SIZE",
        "HEADLONG_LOCAL_RANK",
        "HEADLONG_MASTER_ADDR",
        "HEADLONG_MASTER_PORT",
        "HEADLONG_JOB",
        "HEADLONG_SECRET",
        "HEADLONG_SECRET_FILE",
        "RANK",
        "OMPI_COMM_WORLD_RANK",
        "PMI_RANK",
        "PMIX_RANK",
        "SLURM_PROCID",
    ];
    for name in asked {
        for blank in ["", " \t"] {
            let mut environment = map(&good);
            environment.insert(name.into(), blank.into());
            let text = parse(&environment).expect_err(name).to_string();
            assert!(text.starts_with(&format!("{name}: is set, but empty")), "{text}");
        }
        let mut environment = map(&good);
        environment.insert(name.into(), OsString::from_vec(vec![b'1', 0xff]));
        match name {
            // Bytes are good enough for a secret, and for the name of a file.
            "HEADLONG_SECRET" | "HEADLONG_SECRET_FILE" => assert!(parse(&environment).is_ok()),
            _ => {
                let text = parse(&environment).expect_err(name).to_string();
                assert!(
                    text.starts_with(name) && text.contains("expected text in UTF-8"),
                    "{text}"
                );
            }
        }
    }
}

#[test]
fn a_secret_is_taken_as_the_bytes_that_it_is() {
    let mut environment = map(&[("HEADLONG_RANK", "0"), ("HEADLONG_WORLD_SIZE", "1")]);
    environment.insert("HEADLONG_SECRET".into(), OsString::from_vec(vec![0xff, 0xfe, b' ', 1]));
    let found = parse(&environment).unwrap().launch().unwrap();
    assert_eq!(found.secret, SecretSource::Value(vec![0xff, 0xfe, b' ', 1]));
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
    assert_eq!((found.job.as_str(), &found.secret), ("a", &SecretSource::Value(b"xyz".into())));
    assert!(found.remarks.is_empty(), "{:?}", found.remarks);
    assert!(!format!("{found:?}").contains("xyz"), "a secret is never printed");
}

#[test]
fn torchrun() {
    let found = launch(TORCHRUN);
    assert_eq!((found.launcher, found.rank, found.world_size), (Launcher::Torchrun, Rank(5), 8));
    assert_eq!((found.local_rank, found.local_size), (Some(1), Some(4)));
    assert_eq!((found.master_host.as_str(), found.master_port), ("node-a", 29500));
    assert_eq!((found.job.as_str(), &found.secret), ("none", &SecretSource::None));
}

/// Each of torchrun's agents counts its own restarts: one that comes later has counted fewer.
#[test]
fn torchrun_on_a_machine_that_comes_later() {
    let with = |store: &'static str, count: &'static str| {
        let mut pairs = TORCHRUN.to_vec();
        pairs[8] = ("TORCHELASTIC_RESTART_COUNT", count);
        pairs.push(("TORCHELASTIC_USE_AGENT_STORE", store));
        let found = launch(&pairs);
        (found.job, found.master_port)
    };
    for store in ["False", "True"] {
        assert_eq!(with(store, "0"), with(store, "3"), "{store}");
    }
}

/// Where torchrun's agent listens at MASTER_PORT itself, another port is derived, equal on all
/// ranks.
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
    assert!(
        texts(&one.remarks).contains("torchrun's own store listens at 29500"),
        "{:?}",
        one.remarks
    );
    assert!(!one.remarks[0].is_suspect, "that is as it should be");
}

/// Kubeflow and people by hand give no local ranks.
#[test]
fn torchrun_names_without_local_ranks() {
    let found = launch(
        &TORCHRUN
            .iter()
            .filter(|(name, _)| !name.starts_with("LOCAL"))
            .copied()
            .collect::<Vec<_>>(),
    );
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
    let intel =
        [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "1"), ("MPI_LOCALNRANKS", "2")];
    let cray =
        [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("PMI_LOCAL_RANK", "1"), ("PMI_LOCAL_SIZE", "2")];
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
fn slurm_with_pmix() {
    let mut pairs = SLURM.to_vec();
    pairs.extend([("PMIX_RANK", "6"), ("PMIX_NAMESPACE", "slurm.pmix.4711.0")]);
    assert_eq!(launch(&pairs).launcher, Launcher::Slurm);
}

/// The trap: a batch script without srun sees the job's variables, but is one process.
#[test]
fn slurm_batch_script_without_srun_is_one_process() {
    let batch = [
        ("SLURM_PROCID", "0"),
        ("SLURM_NTASKS", "10"),
        ("SLURM_JOB_ID", "4711"),
        ("SLURM_LOCALID", "0"),
    ];
    assert!(
        single(&batch).contains("a Slurm job of 10 tasks, but srun has not started"),
        "{}",
        single(&batch)
    );
    assert!(single(&[("WORLD_SIZE", "4")]).contains("WORLD_SIZE is 4, but RANK is not set"));
    assert!(single(&[("PMI_SIZE", "4")]).contains("PMI_SIZE is 4, but PMI_RANK is not set"));
    for of_others in ["1", "", "large"] {
        assert_eq!(single(&[("WORLD_SIZE", of_others)]), "");
    }
    // `salloc` gives a shell without a rank.
    assert!(single(&batch[1..3]).contains("srun has not started"));
    // Any other parent knows what it does.
    let mut pairs = OPEN_MPI.to_vec();
    pairs.extend(batch);
    assert!(!texts(&launch(&pairs).remarks).contains("srun"));
}

/// Where all ranks are on this machine, no other one can reach the rendezvous.
#[test]
fn ranks_of_one_machine_meet_where_no_other_machine_is() {
    let mut pairs = TORCHRUN.to_vec();
    pairs[3] = ("LOCAL_WORLD_SIZE", "8");
    assert_eq!(launch(&pairs).master_host, "127.0.0.1");
    pairs.push(("HEADLONG_MASTER_ADDR", "node-b"));
    assert_eq!(launch(&pairs).master_host, "node-b");
}

#[test]
fn precedence_is_said() {
    let mut pairs = TORCHRUN.to_vec();
    pairs.extend(SLURM);
    pairs.extend(OPEN_MPI);
    let found = launch(&pairs);
    assert_eq!(found.launcher, Launcher::Torchrun);
    let remarks = texts(&found.remarks);
    assert!(
        found.remarks.iter().all(|remark| remark.is_suspect),
        "they say other places: {remarks}"
    );
    assert!(
        remarks.contains("Open MPI are present (they say rank 2 of 4); those of torchrun win"),
        "{remarks}"
    );
    assert!(remarks.contains("Slurm are present"), "{remarks}");
    pairs.extend([("HEADLONG_RANK", "0"), ("HEADLONG_WORLD_SIZE", "3")]);
    assert_eq!((launch(&pairs).launcher, launch(&pairs).world_size), (Launcher::Headlong, 3));
}

/// srun starts what speaks PMI: nothing is wrong with it.
#[test]
fn launchers_that_agree_are_no_reason_for_doubt() {
    let mut pairs = SLURM.to_vec();
    pairs.extend([("PMI_RANK", "6"), ("PMI_SIZE", "10")]);
    let found = launch(&pairs);
    assert_eq!(found.launcher, Launcher::Pmi);
    assert_eq!((found.master_host.as_str(), found.local_rank), ("gnode10", Some(2)), "Slurm knows");
    assert!(
        texts(&found.remarks).contains("Slurm are present; those of PMI"),
        "{:?}",
        found.remarks
    );
    assert!(found.remarks.iter().all(|remark| !remark.is_suspect), "{:?}", found.remarks);
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
            "MASTER_PORT: is `70000`, expected a port from 1 to 65535",
        ),
        (
            &[("RANK", "4294967296"), ("WORLD_SIZE", "2")],
            "RANK: is `4294967296`, expected a whole number from 0 to 4294967295",
        ),
        (
            &[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "n[[[0-1]")],
            "MASTER_ADDR: is \"n[[[0-1]\", expected the name or address of a machine",
        ),
        (
            &[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a:29500")],
            "MASTER_ADDR: is \"a:29500\", expected a name or an address alone: a port is for \
             MASTER_PORT",
        ),
        (
            &[("RANK", "0"), ("WORLD_SIZE", "2"), ("HEADLONG_MASTER_ADDR", "[::]")],
            "HEADLONG_MASTER_ADDR: is \"[::]\", which is every address of a machine",
        ),
        (
            &[("HEADLONG_RANK", "0"), ("HEADLONG_WORLD_SIZE", "2"), ("HEADLONG_LOCAL_RANK", "0")],
            "HEADLONG_LOCAL_SIZE: is not set, but HEADLONG_LOCAL_RANK is",
        ),
        (
            &[
                ("RANK", "0"),
                ("WORLD_SIZE", "1"),
                ("HEADLONG_SECRET", "a"),
                ("HEADLONG_SECRET_FILE", "b"),
            ],
            "HEADLONG_SECRET_FILE: is set, and HEADLONG_SECRET too",
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
        ("n[[[0-1]", None),
        ("", None),
    ];
    for (list, first) in hosts {
        assert_eq!(slurm::first_of(list).as_deref(), first, "{list}");
    }
    for (node, tasks) in [("0", Some(4)), ("2", Some(4)), ("3", Some(2)), ("4", None)] {
        let environment = map(&[("SLURM_STEP_TASKS_PER_NODE", "4(x3),2"), ("SLURM_NODEID", node)]);
        assert_eq!(
            slurm::tasks_on_node(&Variables::new(&environment)).ok().flatten(),
            tasks,
            "node {node}"
        );
    }
    // The sum of its nodes wraps.
    let list = format!("1(x{}),1(x7)", usize::MAX);
    let environment = map(&[("SLURM_STEP_TASKS_PER_NODE", &list), ("SLURM_NODEID", "5")]);
    assert_eq!(slurm::tasks_on_node(&Variables::new(&environment)).unwrap(), Some(1));
    let list = format!("1(x6),1(x{})", usize::MAX);
    let environment = map(&[("SLURM_STEP_TASKS_PER_NODE", &list), ("SLURM_NODEID", "6")]);
    assert!(slurm::tasks_on_node(&Variables::new(&environment)).is_err());
}

#[test]
fn a_node_of_more_ranks_than_the_step_has_is_refused() {
    let text = refusal(&[
        ("SLURM_PROCID", "5"),
        ("SLURM_STEP_NUM_TASKS", "8"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_TASKS_PER_NODE", "9"),
        ("SLURM_NODEID", "0"),
        ("SLURM_LOCALID", "5"),
        ("SLURM_STEP_NODELIST", "gnode1"),
    ]);
    assert!(text.contains("SLURM_STEP_TASKS_PER_NODE: is 9, more than"), "{text}");
}

#[test]
fn brackets_of_an_ipv6_address_are_taken_off() {
    let found = launch(&[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "[fd00::1]")]);
    assert_eq!(found.master_host, "fd00::1");
}
