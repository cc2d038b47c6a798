//! `headlong plan`, and the plan that `headlong train` prints first.

use crate::Registry;
use crate::cli::PlanArguments;
use crate::config::{Config, Ids, TransportChoice};
use crate::crew::local_topology;
use crate::data;
use crate::error::{Error, Result};
use crate::machine::{DeviceFacts, Machine};
use crate::outlook::{Outlook, Place};
use crate::output;
use crate::placement::source_of_costs;
use crate::plan::cluster::description::ClusterDescription;
use crate::plan::{Facts, Plan, evaluation};
use crate::report::{Reporter, bytes};
use crate::train::Prepared;
use headlong_embedding::hybrid::split::Split;

mod cluster;

/// Whose device is assumed where there is none.
const ASSUMED_DEVICE: &str = "dgx-h100";

/// Prints the plan of a configuration and refuses what does not fit.
///
/// # Errors
/// As [`crate::cli::TrainArguments::resolve`]; [`crate::error::Error::DoesNotFit`] after the plan is printed.
pub fn run(arguments: &PlanArguments, registry: &Registry) -> Result<()> {
    let on_cluster = &arguments.on_cluster;
    if on_cluster.check_published {
        return cluster::check_published(&arguments.json);
    }
    if let Some(name) = &on_cluster.cluster {
        return cluster::run(arguments, name, registry);
    }
    let (mut config, options) = arguments.train.resolve(registry)?;
    config.check_files()?;
    config.multi_hot.is_idle = !data::is_drawn(&config, &[&config.data.train, &config.data.valid])?;
    let (machine, device_note) = machine(&config)?;
    let place = Place { machine: &machine, ranks_here: None, separate: in_processes(&config), registry };
    let outlook = Outlook::of(&config)?;
    config.check_tables(&outlook.rows, registry)?;
    let data_rows = arguments.data_rows.or(outlook.data_rows);
    let facts = Facts { data_rows, ..outlook.facts(&outlook.least_rows, &place) };
    // What fits in no case is not read, either.
    let refusal = Plan::new(&config, &facts).check(&config, &facts);
    let facts = Facts { data_rows, ..outlook.facts(&outlook.rows, &place) };
    let (split, split_note) = match &refusal {
        Ok(()) => planned_split(&config, registry)?,
        Err(_) => (None, String::new()),
    };
    let facts = Facts { split: split.as_ref(), ..facts };
    let plan = Plan::new(&config, &facts);
    let document = serde_json::to_value(&plan).expect("a plan has a JSON form");
    let eval_note = evaluation::note(&config, known_valid_rows(&config)?, data_rows);
    let notes = format!("{device_note}{}{split_note}{eval_note}", outlook.note());
    let text = format!("plan of {}\n{}{notes}", options.origin, plan.to_text());
    output::answer(&arguments.json, &text, &document)?;
    refusal?;
    match outlook.rows == outlook.least_rows {
        true => plan.check(&config, &facts),
        // The dictionary may be smaller than its bound.
        false => Ok(()),
    }
}

/// This machine, with a CUDA device where one is asked for: where there is none, one is assumed, and a note says so.
fn machine(config: &Config) -> Result<(Machine, String)> {
    match Machine::detect_with(config.run.device) {
        Err(Error::Unsupported { .. }) => {}
        found => return Ok((found?, String::new())),
    }
    let assumed = ClusterDescription::find(ASSUMED_DEVICE)?;
    let free_bytes = assumed.memory_bytes();
    let note = format!(
        "device: there is none here; assumed are those of `--cluster {ASSUMED_DEVICE}`, {} each, one a rank\n",
        bytes(free_bytes)
    );
    let name = format!("assumed device of {ASSUMED_DEVICE}");
    let device = Some(DeviceFacts { name, free_bytes, count: config.run.ranks });
    Ok((Machine { device, ..Machine::detect() }, note))
}

/// Whether ranks are processes: over these transports nothing else can be meant.
fn in_processes(config: &Config) -> bool {
    let transport = config.run.transport;
    config.run.ranks > 1
        && matches!(transport, TransportChoice::Tcp | TransportChoice::Shm | TransportChoice::Verbs)
}

/// The split of the rows among the ranks, from statistics of the training files' first batches; with a note where there are ranks
/// but no statistics.
fn planned_split(config: &Config, registry: &Registry) -> Result<(Option<Split>, String)> {
    if config.run.ranks == 1 {
        return Ok((None, String::new()));
    }
    let dictionary_to_build = config.data.ids == Ids::Dictionary && config.data.dictionary.is_none();
    if config.data.train.is_empty() || dictionary_to_build {
        let missing = if dictionary_to_build { "the dictionary is" } else { "training files are" };
        let note =
            format!("rows are split among the ranks once {missing} there; here they are divided evenly\n");
        return Ok((None, note));
    }
    let threads = config.run.threads.unwrap_or_else(crate::machine::cores);
    let prepared = Prepared::new(config, None, threads, &Reporter::quiet(None))?;
    Ok((prepared.placement(config, &local_topology(config), registry)?.split, source_of_costs(config)?))
}

/// Rows of the validation data where they are known without reading it.
fn known_valid_rows(config: &Config) -> Result<Option<u64>> {
    match &config.data.valid[..] {
        [] => {
            Ok((config.data.train.is_empty() && config.synthetic.enabled)
                .then_some(config.synthetic.valid_rows))
        }
        files => data::known_samples(config, files),
    }
}
