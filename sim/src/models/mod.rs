//! Pure models of servers: the state of a server, and the effect of one request on the state.
pub mod redis;
pub mod store;
