//! The binary as its users meet it: one test binary, so that everything is linked once.

mod agent_process;
mod aims;
mod arrows;
mod as_root;
mod backends;
mod builds;
mod check;
mod client;
mod compare;
mod cut_off;
mod doctor;
#[cfg(feature = "dynamodb")]
mod dynamodb;
mod etcd;
mod explore;
mod export;
mod faults;
mod findings;
mod foreign;
mod going;
mod imports;
mod list;
mod lock_server;
mod mutants;
mod nemesis;
mod own_record;
mod postgres;
mod real;
#[path = "../shared/redis_binary.rs"]
mod redis_binary;
mod replicated;
mod s3;
#[path = "../shared/say.rs"]
mod say;
mod scripts;
mod selftest;
mod serve;
mod servers;
mod shards;
mod shell;
mod simulated;
mod suite;
mod support;
mod tidy;
mod usage;
#[path = "../shared/vdso.rs"]
mod vdso;
mod worker_process;
mod zookeeper;
