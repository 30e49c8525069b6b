//! The resource from outside: its rule, its service over real sockets, its restarts and its client.

mod client;
mod restart;
mod rule;
mod served;
mod service;
