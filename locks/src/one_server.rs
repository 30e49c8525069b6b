//! The answers and the failures of a lock whose record has one server, or one store.

use crate::{
    hold::{Failure, FailureReason, NodeAnswer, NodeAnswers, NodeName, Outcome},
    ports::NodeError,
};

/// The name of the only server in answers and messages.
#[derive(Debug, Clone)]
pub(crate) struct OneServer(NodeName);

impl OneServer {
    pub fn new(name: &str) -> OneServer {
        OneServer(name.into())
    }

    pub fn answers(&self, answer: NodeAnswer) -> NodeAnswers {
        vec![(self.0.clone(), answer)]
    }

    /// A definite failure.
    pub fn failed(&self, reason: FailureReason, answer: NodeAnswer) -> Failure {
        Failure { reason, outcome: Outcome::Failed, answers: self.answers(answer) }
    }

    /// The failure of a request without an answer.
    pub fn unanswered(&self, error: &NodeError) -> Failure {
        let outcome = match error {
            NodeError::Definite(_) => Outcome::Failed,
            NodeError::Indeterminate(_) => Outcome::Indeterminate,
        };
        let reason = FailureReason::Error(format!("{}: {error}", self.0));
        Failure { reason, outcome, answers: self.answers(NodeAnswer::None) }
    }
}
