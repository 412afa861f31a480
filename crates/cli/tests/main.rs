//! `mpib` as a user starts it.

extern crate mpib_test_env as _;
extern crate softverbs as _;

#[path = "../../agent/tests/authority.rs"]
mod authority;
mod browser;
mod built;
mod doctor_util;
mod fake;
mod job;
mod loopback_example;
mod transfer;
mod two_hosts;

mod abi;
mod agent;
mod agent_user;
mod agent_walk;
mod agent_web;
mod book;
mod codes;
mod degraded;
mod doctor;
mod doctor_broken;
mod doctor_expect;
mod doctor_fleet;
mod doctor_pair;
mod doctor_ports;
mod doctor_selected;
mod documents;
mod drain;
mod enable;
mod guide;
mod hwcheck;
mod loopback;
mod monitoring;
mod own_plugin;
mod page;
mod perf;
mod perf_one_sided;
mod perf_output;
mod setup;
mod stats;
mod terminal;
mod top;
mod why;
mod without_host;
