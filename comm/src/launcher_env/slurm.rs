//! Slurm's ways of writing lists: `gnode[10,20-22],login1` and `4(x3),2`.

use super::variables::{Variables, refuse};
use crate::error::Result;

/// Tasks on this node, from the step's `4(x3),2` and this node's number.
pub fn tasks_on_node(variables: &Variables) -> Result<Option<usize>> {
    let name = "SLURM_STEP_TASKS_PER_NODE";
    let (Some(list), Some(node)) = (variables.text(name)?, variables.number("SLURM_NODEID")?)
    else {
        return Ok(None);
    };
    let wrong = || {
        refuse(
            name,
            format!("is `{list}`, expected counts such as `4(x3),2` that reach node {node}"),
        )
    };
    let mut first_node = 0_usize;
    for part in list.split(',') {
        let (tasks, nodes) = match part.split_once("(x") {
            Some((tasks, nodes)) => (tasks, nodes.trim_end_matches(')')),
            None => (part, "1"),
        };
        let tasks: usize = tasks.parse().map_err(|_| wrong())?;
        let nodes = nodes.parse::<usize>().map_err(|_| wrong())?;
        first_node = nodes.checked_add(first_node).ok_or_else(wrong)?;
        if node < first_node {
            return Ok(Some(tasks));
        }
    }
    Err(wrong())
}

/// The first host of the step: the one of rank 0.
pub fn first_host(variables: &Variables) -> Result<String> {
    for name in ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"] {
        if let Some(list) = variables.text(name)? {
            let wrong =
                || refuse(name, format!("is `{list}`, expected nodes such as `gnode[10,20-22]`"));
            return first_of(list).ok_or_else(wrong);
        }
    }
    let reason = "is not set, and Slurm gives no list of nodes: set it to the machine of rank 0";
    Err(refuse("HEADLONG_MASTER_ADDR", reason))
}

/// The first host of `gnode[10,20-22]-ib,login1`: `gnode10-ib`.
pub fn first_of(list: &str) -> Option<String> {
    let open = list.find('[');
    let comma = list.find(',').unwrap_or(list.len());
    let Some(open) = open.filter(|open| *open < comma) else {
        return Some(list[..comma].to_string()).filter(|host| !host.is_empty());
    };
    let close = open + list[open..].find(']')?;
    let number = list[open + 1..close].split([',', '-']).next()?;
    let rest = &list[close + 1..];
    let suffix = &rest[..rest.find(',').unwrap_or(rest.len())];
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let plain = is_number && !suffix.contains(['[', ']']);
    plain.then(|| format!("{}{number}{suffix}", &list[..open]))
}
