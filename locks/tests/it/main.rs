//! The lock clients against nodes in memory, under virtual time, and against real servers where there are any.

mod attempt;
mod bounds;
mod cluster;
mod dynamodb;
#[cfg(feature = "dynamodb")]
mod dynamodb_http;
mod etcd;
#[cfg(feature = "planted")]
mod planted;
mod program;
mod real;
#[path = "../../../tests/shared/redis_binary.rs"]
mod redis_binary;
mod reentrant;
mod renewal;
#[path = "../../../tests/shared/say.rs"]
mod say;
mod store;
mod tokens;
mod watches;
mod zookeeper;
