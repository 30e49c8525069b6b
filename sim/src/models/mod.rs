//! Models of servers. Pure: what a server keeps, and what one request does to it.
pub mod redis;
pub mod store;
