//! The checks of `harness client check`.

/// The checks, in their order.
#[derive(Debug, Clone, Copy)]
pub enum Check {
    Acquire,
    Held,
    Renew,
    Release,
    ForeignRelease,
    Expiry,
    LateRelease,
    Cancel,
    Unknown,
    Timeout,
    End,
}

impl Check {
    /// All checks.
    pub const ALL: [Check; 11] = [
        Check::Acquire,
        Check::Held,
        Check::Renew,
        Check::Release,
        Check::ForeignRelease,
        Check::Expiry,
        Check::LateRelease,
        Check::Cancel,
        Check::Unknown,
        Check::Timeout,
        Check::End,
    ];

    /// Returns the name, as the output and docs/client-protocol.md have it.
    pub fn name(self) -> &'static str {
        match self {
            Check::Acquire => "acquire",
            Check::Held => "held",
            Check::Renew => "renew",
            Check::Release => "release",
            Check::ForeignRelease => "foreign release",
            Check::Expiry => "expiry",
            Check::LateRelease => "late release",
            Check::Cancel => "cancel",
            Check::Unknown => "unknown request",
            Check::Timeout => "timeout",
            Check::End => "end of input",
        }
    }
}
