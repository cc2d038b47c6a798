//! `headlong plan`, and the plan that `headlong train` prints first.

use crate::commands::files::CommandFiles;
use crate::commands::launch::{launch_of_several, with_device};
use crate::commands::train::resume::find_checkpoint;
use crate::commands::train_arguments::{TrainArguments, of_training};
use crate::config::{Config, Ids, RunConfig};
use crate::error::{Error, Result};
use crate::iteration::ranks::local_topology;
use crate::plan::placement::{check_carrier, check_merging, source_of_costs};
use crate::plan::{Facts, Plan, evaluation};
use crate::report::bytes;
use crate::report::output::{self, JsonOutput};
use crate::run::dictionary::RunDictionary;
use crate::run::outlook::{Outlook, Place};
use crate::run::prepare::Prepared;
use crate::state::checkpoint::Checkpoint;
use crate::system::machine::{DeviceFacts, Machine};
use crate::{Registry, data};
use clap::Args;
use headlong_comm::Topology;
use std::path::PathBuf;

mod cluster;
mod stages;

/// What `headlong plan` is asked about a cluster.
#[derive(Debug, Default, Args)]
pub struct ClusterArguments {
    /// Plan for laptop, h200x1, dgx-a100, dgx-h100, dgx-h200, gb200-nvl72, gb300-nvl72 or a
    /// described cluster; `show` prints the descriptions
    #[arg(long, value_name = "NAME|FILE.toml|show", help_heading = "Cluster")]
    pub cluster: Option<PathBuf>,
    /// Nodes of it
    #[arg(long, value_name = "N", requires = "cluster", help_heading = "Cluster")]
    pub nodes: Option<usize>,
    /// Devices of a node
    #[arg(long, value_name = "N", requires = "cluster", help_heading = "Cluster")]
    pub devices_per_node: Option<usize>,
    /// How often rows are asked for: Criteo's Terabyte logs, or the row of rank k in proportion to
    /// k^-ALPHA
    #[arg(long, value_name = "terabyte|ALPHA", requires = "cluster", help_heading = "Cluster")]
    pub frequencies: Option<String>,
    /// Batch sizes to choose from; by default that of the configuration, and those whose
    /// convergence is published
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        requires = "cluster",
        help_heading = "Cluster"
    )]
    pub batch_sizes: Vec<usize>,
    /// Draw step time and samples per second against devices, and where the tables lie
    #[arg(long, value_name = "FILE.svg", requires = "cluster", help_heading = "Cluster")]
    pub plot: Option<PathBuf>,
    /// Compare predictions with what was published
    #[arg(long, help_heading = "Cluster")]
    pub check_published: bool,
}

/// Arguments of `headlong plan`: those of `train`, and where the JSON goes.
#[derive(Debug, Args)]
pub struct PlanArguments {
    /// As for `train`
    #[command(flatten)]
    pub train: TrainArguments,
    /// Rows of the training files, where known: adds the last batch and the nearest batch size that
    /// divides them
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub data_rows: Option<u64>,
    /// Show the stages of a step: their lanes, what they read and write, and what each waits for
    #[arg(long, conflicts_with_all = ["cluster", "check_published"])]
    pub stages: bool,
    /// For a cluster that is not here
    #[command(flatten)]
    pub on_cluster: ClusterArguments,
    /// Where the JSON goes
    #[command(flatten)]
    pub json: JsonOutput,
}

/// Whose device is assumed where there is none.
const ASSUMED_DEVICE: &str = "dgx-h100";

/// Prints the plan of a configuration and refuses what does not fit.
///
/// # Errors
/// As [`TrainArguments::resolve`]; [`Error::DoesNotFit`] after
/// the plan is printed.
pub fn run(arguments: &PlanArguments, registry: &Registry) -> Result<()> {
    let on_cluster = &arguments.on_cluster;
    if on_cluster.check_published {
        return cluster::check_published(&arguments.json);
    }
    if let Some(name) = &on_cluster.cluster {
        return cluster::run(arguments, name, registry);
    }
    let (config, options) = arguments.train.resolve(registry)?;
    if arguments.stages {
        return stages::run(&config, &arguments.json);
    }
    of_plan(arguments, &config).check()?;
    config.check_files()?;
    let config = with_device(&data::resolve(&config)?, registry)?;
    let resumed = find_checkpoint(&config, &options, false)?;
    let launch = launch_of_several();
    let (machine, device_note) = machine(&config)?;
    let topology = local_topology(&config);
    let nodes = 0..topology.num_nodes();
    // Nodes are machines here, and this is one of them.
    let on_machines = launch.is_none() && nodes.len() > 1;
    let largest = nodes.map(|node| topology.node_size(node)).max().filter(|_| on_machines);
    let place = Place {
        machine: &machine,
        ranks_here: launch
            .as_ref()
            .and_then(|launch| launch.local_size)
            .map(|ranks| ranks.min(config.run.ranks))
            .or(largest),
        evaluating_here: None,
        separate: launch.is_some() || in_processes(&config) || on_machines,
        registry,
    };
    let of_run =
        OfRun { resumed: resumed.as_ref(), topology: &topology, data_rows: arguments.data_rows };
    let mut planned = Planned::new(&config, &place, &of_run)?;
    planned.notes.insert_str(0, &device_note);
    if let Some(ranks) = largest {
        planned.notes.push_str(&format!(
            "nodes: {} machines like this one, of up to {ranks} processes each \
             (comm.ranks_per_node)\n",
            topology.num_nodes()
        ));
    }
    if launch.is_none() && in_processes(&config) {
        let RunConfig { transport, ranks, .. } = &config.run;
        planned.notes.push_str(&format!(
            "transport: \"{}\" joins processes, which `headlong launch -n {ranks} -- train …` or \
             another launcher starts; whether it is there is found out then\n",
            transport.name()
        ));
    }
    let document = serde_json::to_value(&planned.plan).expect("a plan has a JSON form");
    output::answer(&arguments.json, &planned.text(&options.origin), &document)?;
    planned.fits
}

/// What a plan is made of besides configuration and machine.
pub struct OfRun<'a> {
    pub resumed: Option<&'a Checkpoint>,
    pub topology: &'a Topology,
    /// Rows of the training data, where the user knows them.
    pub data_rows: Option<u64>,
}

/// A plan made of what is known without writing anything: no data is made, no dictionary built, no
/// folder created.
pub struct Planned {
    pub plan: Plan,
    /// Why it does not fit, where it does not.
    pub fits: Result<()>,
    /// What is not known yet, and what follows from what is: lines below the plan.
    notes: String,
}

impl Planned {
    pub fn new(config: &Config, place: &Place<'_>, of_run: &OfRun<'_>) -> Result<Self> {
        let mut config = config.clone();
        data::check_beginning(&config)?;
        config.multi_hot.is_idle =
            !data::is_drawn(&config, &[&config.data.train, &config.data.valid])?;
        let (outlook, rows_note) = outlook(&config, of_run.resumed)?;
        config.check_tables(&outlook.rows, place.registry)?;
        outlook.check_eval_ranks(&config)?;
        let data_rows = of_run.data_rows.or(outlook.data_rows);
        // What a run on such nodes refuses, its plan refuses.
        check_merging(&config, of_run.topology)?;
        check_carrier(&config, of_run.topology)?;
        let nodes = of_run.topology.num_nodes();
        let least = Facts { data_rows, nodes, ..outlook.facts(&outlook.least_rows, place) };
        let least_plan = Plan::new(&config, &least);
        let refusal = least_plan.check(&config, &least);
        // What fits in no case is not read, either.
        let prepared = match (&refusal, config.run.ranks) {
            (Err(_), _) | (_, 1) => None,
            (Ok(()), _) => Prepared::as_it_is(&config, of_run.resumed)?,
        };
        let (split, split_note) = match prepared {
            Some(mut prepared) => {
                let (topology, here) = (of_run.topology, place.ranks_here);
                let here = here.unwrap_or(config.run.ranks);
                prepared.share_machine(place.separate.then_some(here), 0);
                let split = prepared.placement(&config, topology, place.registry)?.split;
                (split, source_of_costs(&config, topology)?)
            }
            None if refusal.is_err() => (None, String::new()),
            None => (None, missing_for_a_split(&config)),
        };
        let facts = Facts { split: split.as_ref(), ..Facts { table_rows: &outlook.rows, ..least } };
        let plan = Plan::new(&config, &facts);
        let eval_note = match evaluation::missing_data(&config) {
            Some(note) => format!("{note}\n"),
            None => evaluation::note(&config, known_valid_rows(&config)?, data_rows),
        };
        // The dictionary may be smaller than its bound.
        let (judged, facts) = match outlook.rows == outlook.least_rows {
            true => (&plan, facts),
            false => (&least_plan, least),
        };
        let fits = refusal.and_then(|()| judged.check(&config, &facts));
        Ok(Self { notes: format!("{rows_note}{split_note}{eval_note}"), plan, fits })
    }

    pub fn text(&self, origin: &str) -> String {
        format!("plan of {origin}\n{}{}", self.plan.to_text(), self.notes)
    }
}

/// What is known of a run before it writes anything: of the dictionary, too, where one is there;
/// and a line about rows that are not known yet.
fn outlook(config: &Config, resumed: Option<&Checkpoint>) -> Result<(Outlook, &'static str)> {
    if config.data.ids != Ids::Dictionary {
        return Ok((Outlook::of(config)?, ""));
    }
    let dictionary = RunDictionary::that_is_there(config, &config.data.train, resumed)?;
    let rows = dictionary.as_ref().map(RunDictionary::table_rows);
    let outlook = Outlook::with_dictionary(config, rows.as_deref())?;
    let note = match (&dictionary, outlook.note()) {
        (None, "") => {
            "rows: the dictionary is not built yet; tables smaller than it will be refused\n"
        }
        (_, note) => note,
    };
    dictionary.map_or(Ok(()), |found| found.check_rows(config, &outlook.rows))?;
    Ok((outlook, note))
}

/// This machine, with a CUDA device where one is asked for: where there is none, one is assumed,
/// and a note says so.
fn machine(config: &Config) -> Result<(Machine, String)> {
    match Machine::detect_with(config.run.device) {
        Err(Error::Unsupported { .. }) => {}
        found => return Ok((found?, String::new())),
    }
    let assumed = crate::plan::cluster::find(ASSUMED_DEVICE)?;
    let free_bytes = assumed.memory_bytes();
    let note = format!(
        "device: there is none here; assumed are those of `--cluster {ASSUMED_DEVICE}`, {} each, \
         one a rank\n",
        bytes(free_bytes)
    );
    let name = format!("assumed device of {ASSUMED_DEVICE}");
    let device = Some(DeviceFacts { name, free_bytes, count: config.run.ranks });
    Ok((Machine { device, ..Machine::detect() }, note))
}

/// Whether ranks are processes: over these transports nothing else can be meant.
fn in_processes(config: &Config) -> bool {
    let transport = config.run.transport;
    config.run.ranks > 1 && transport.joins_processes()
}

/// Why the rows are not split among the ranks, where there are ranks.
fn missing_for_a_split(config: &Config) -> String {
    if config.run.ranks == 1 {
        return String::new();
    }
    let missing = match config.data.train.is_empty() {
        true => "training files are",
        false => "the dictionary is",
    };
    format!("rows are split among the ranks once {missing} there; here they are divided evenly\n")
}

/// Rows of the validation data where they are known without reading it.
fn known_valid_rows(config: &Config) -> Result<Option<u64>> {
    match &config.data.valid[..] {
        [] => Ok((config.data.train.is_empty() && config.synthetic.enabled)
            .then_some(config.synthetic.valid_rows)),
        files => data::known_samples(config, files),
    }
}

/// The files of `headlong plan`.
pub fn of_plan(arguments: &PlanArguments, config: &Config) -> CommandFiles {
    let on_cluster = &arguments.on_cluster;
    of_training(&arguments.train, config)
        .reads("--cluster", &on_cluster.cluster)
        .writes("--plot", &on_cluster.plot)
        .writes_json(&arguments.json)
}
