//! The resource from outside: its rule, its service over real sockets, its restarts and its client.

mod client;
mod etcd;
mod fake_etcd;
mod fake_s3;
mod postgres;
#[path = "../../../tests/shared/postgres_binary.rs"]
mod postgres_binary;
#[path = "../../../tests/shared/postgres_server.rs"]
mod postgres_server;
mod random;
#[path = "../../../tests/shared/real.rs"]
mod real;
mod restart;
mod rule;
mod s3;
#[path = "../../../tests/shared/say.rs"]
mod say;
mod served;
mod service;
mod treat;
