//! Why no order of the operations exists.

/// A fact that no order can have. Operations are indices into the operations of the object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// This operation saw a value that nobody can have written before its answer.
    FromNowhere(usize),
    /// The register had one value between two operations, but meanwhile it must have had another.
    TwoValues {
        /// The first operation after whose answer the register had the value; `None`: it had the value at the start.
        from: Option<usize>,
        /// The last operation that was called while the register had the value.
        to: usize,
        /// The operation with the other value that was answered first, and the one that was called last. The register
        /// had the other value at an instant before that answer, and at one after that call.
        between: [usize; 2],
    },
    /// The lock was held by two at the same time: two acquisitions.
    TwoHolders(usize, usize),
    /// The release was answered, but the lock was held all the time by another client.
    NeverHeld {
        /// The release.
        release: usize,
        /// The acquisition of the other client.
        acquire: usize,
    },
    /// No order of the operations up to the answer of this one explains it.
    NoOrder {
        /// The operation.
        operation: usize,
        /// States in which orders of the operations before its answer end, in words: some of them.
        states: Vec<String>,
    },
}
