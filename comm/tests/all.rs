//! Every test of ranks on a processor that needs no program of its own. One program for all: each
//! would hold the whole library once more.

#![cfg(test)]

mod busy_ranks;
mod collectives;
mod collectives_cases;
mod collectives_every_way;
mod collectives_failures;
mod memory_path;
mod paths;
mod rendezvous_attacks;
mod rendezvous_refusals;
mod rendezvous_unauthenticated;
mod rendezvous_whole;
mod shm_unauthenticated;
mod sim_cases;
mod sim_network;
mod sim_schedules;
mod tcp_exchange;
mod tcp_launchers;
mod tcp_netns;
mod tcp_processes;
mod tcp_support;
