//! The processor's share and its clock.

use super::Finding;
use super::system::System;

pub(super) fn findings(system: &System) -> Vec<Finding> {
    let mut findings = vec![clock(system), affinity(system)];
    findings.extend(quota(system));
    findings
}

fn clock(system: &System) -> Finding {
    let source = system.text("sys/devices/system/clocksource/clocksource0/current_clocksource");
    match source.as_deref() {
        Some(slow @ ("hpet" | "acpi_pm" | "jiffies" | "refined-jiffies")) => Finding::warn(
            "clock",
            format!("the clock source is {slow}"),
            "asking for the time takes a microsecond and more: measured latencies are too long, \
             waits are slower",
            "let the kernel use tsc (look for `tsc: Marking TSC unstable` in dmesg; firmware, \
             clocksource=tsc)",
        ),
        Some(source) => Finding::ok("clock", format!("clock source {source}")),
        None => Finding::ok("clock", "clock source not known"),
    }
}

/// How many processors a list such as `0-3,8` names.
fn count_of(list: &str) -> usize {
    let range = |part: &str| match part.split_once('-') {
        Some((first, last)) => {
            Some(last.parse::<usize>().ok()?.checked_sub(first.parse().ok()?)? + 1)
        }
        None => part.parse::<usize>().ok().map(|_| 1),
    };
    list.trim().split(',').filter_map(range).sum()
}

fn allowed(system: &System) -> Option<usize> {
    let status = system.text("proc/self/status")?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(count_of(list)).filter(|count| *count > 0)
}

fn affinity(system: &System) -> Finding {
    let online = system.text("sys/devices/system/cpu/online").map(|list| count_of(&list));
    match (allowed(system), online) {
        (Some(1), Some(online)) if online > 1 => Finding::warn(
            "affinity",
            format!("this process may use 1 of {online} processors"),
            "threads that compute and threads that exchange take turns on one core",
            "mpirun --bind-to none, srun --cpus-per-task=N, or taskset in the shell that starts it",
        ),
        (Some(allowed), Some(online)) => {
            Finding::ok("affinity", format!("{allowed} of {online} processors"))
        }
        _ => Finding::ok("affinity", "not known"),
    }
}

/// A limit on processor time (control groups, version 2 and 1).
fn quota(system: &System) -> Option<Finding> {
    let cpu = "sys/fs/cgroup/cpu";
    let (quota, period) = match system.text("sys/fs/cgroup/cpu.max") {
        Some(text) => {
            let (quota, period) = text.split_once(' ')?;
            (quota.parse::<f64>().ok()?, period.parse::<f64>().ok()?)
        }
        None => {
            let quota =
                system.number(format!("{cpu}/cpu.cfs_quota_us")).filter(|quota| *quota > 0)?;
            (quota as f64, system.number(format!("{cpu}/cpu.cfs_period_us"))? as f64)
        }
    };
    let (share, allowed) = (quota / period, allowed(system)? as f64);
    Some(match share + 0.01 < allowed {
        false => Finding::ok("processor time", format!("{share:.1} processors")),
        true => Finding::warn(
            "processor time",
            format!("the control group allows {share:.1} processors of {allowed} that are visible"),
            "with a thread for each visible processor all are stopped for part of every 100 ms: \
             peers wait",
            "--threads with the smaller number, or raise the limit (docker --cpus, Kubernetes \
             resources.limits.cpu)",
        ),
    })
}
