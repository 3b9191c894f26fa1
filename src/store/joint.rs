//! What a store says where it decided a part of a joint decision only: what it told, and what it charged, which is kept or undone.

use tokio::sync::oneshot;

use crate::{StoreError, Verdict};

/// Why a store did not decide all checks of a joint decision.
#[derive(Debug)]
pub struct JointFailure {
    /// Why it did not decide the others.
    pub error: StoreError,
    /// For each check, in their order, the verdict of those that it decided. Empty if there are none. If [`Self::charged`] is some, these
    /// checks were charged where they fit, and the readings are those after it. Else nothing was charged.
    pub answered: Vec<Option<Verdict>>,
    /// What was charged before the failure.
    pub charged: Option<Charged>,
}

impl From<StoreError> for JointFailure {
    fn from(error: StoreError) -> Self {
        Self {
            error,
            answered: Vec::new(),
            charged: None,
        }
    }
}

/// Charges of a joint decision of which the store could not decide the rest. They are undone unless they are kept, also when this is
/// dropped. The store undoes them by itself, whoever waits for it.
#[derive(Debug)]
pub struct Charged(oneshot::Sender<Settled>);

/// How many requests were undone that were charged before another one of their joint decision was denied. Counts begin at the start of
/// the store. Only a Cluster has any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JointUndos {
    /// The store confirmed it.
    pub done: u64,
    /// It could not be sent, was refused, or got no answer. At worst the units stay until their windows end.
    pub unknown: u64,
}

/// What is to become of charges.
#[derive(Debug)]
pub enum Settled {
    /// They stay.
    Kept,
    /// They are undone, and then the readings are sent.
    Undone(oneshot::Sender<Vec<Option<Verdict>>>),
}

impl Charged {
    /// For a store: charges, and where it learns what is to become of them. An error there means that they are to be undone.
    pub fn new() -> (Self, oneshot::Receiver<Settled>) {
        let (settle, settled) = oneshot::channel();
        (Self(settle), settled)
    }

    /// The charges stay: the whole is allowed.
    pub fn keep(self) {
        // Where the store is gone, they stay too.
        drop(self.0.send(Settled::Kept));
    }

    /// Undoes the charges. Returns once that is done, or after twice the store's deadline: for each check of the joint decision its
    /// readings then, if they are known.
    pub async fn undo(self) -> Vec<Option<Verdict>> {
        let (reply, undone) = oneshot::channel();
        drop(self.0.send(Settled::Undone(reply)));
        undone.await.unwrap_or_default()
    }
}
