//! Carries plans out, call by call. What was made a moment ago is not known everywhere at once, and what is deleted is in
//! others' way for a while: such calls are repeated, for a while.

use std::time::Duration;

use kops_core::{
    direct::{self, Call, Change, Erasure, Ids, There},
    model::aws::{Model, Ref},
};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::Error;

/// How long AWS has to know everywhere what it has made.
const KNOWN: Duration = Duration::from_secs(180);
/// How long machines and balancers have to be gone that are in the way of others.
const GONE: Duration = Duration::from_secs(900);
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Words of AWS that say that something is in the way of a deletion.
const BUSY: [&str; 6] = [
    "DependencyViolation",
    "InUse",
    "ScalingActivityInProgress",
    "DeleteConflict",
    "IncorrectState",
    "ResourceContention",
];

pub(super) struct Actor<'a> {
    client: &'a aws::Client,
    model: &'a Model,
    there: &'a There,
    ids: Ids,
    /// Whether something was made, which not everybody in AWS may know yet.
    has_made: bool,
}

impl<'a> Actor<'a> {
    pub(super) fn new(
        client: &'a aws::Client,
        model: &'a Model,
        there: &'a There,
        ids: Ids,
    ) -> Self {
        Self { client, model, there, ids, has_made: false }
    }

    pub(super) async fn carry_out(&mut self, changes: &[Change]) -> Result<(), Error> {
        for change in changes {
            match change.verb {
                "create" => self.make(change).await?,
                "modify" => {
                    let to = Ref::new(change.kind, change.name.clone());
                    let id = self.ids.get(&to).cloned().unwrap_or_default();
                    self.change(&to, &id, &change.fields).await?;
                }
                _ => {
                    for call in &change.calls {
                        erase_one(self.client, call).await?;
                    }
                }
            }
        }
        Ok(())
    }

    async fn make(&mut self, change: &Change) -> Result<(), Error> {
        let to = Ref::new(change.kind, change.name.clone());
        let Some(resource) = self.model.find(&to) else { return Ok(()) };
        let making = direct::makes(resource, &self.ids, &self.model.region)?;
        let answer = match self.ask(&making.call).await {
            // A new security group has rules of its own, which may be those that are wanted.
            Err(Error::Aws(error)) if error.code() == "InvalidPermission.Duplicate" => Value::Null,
            answer => answer?,
        };
        let id = making.learn(resource, &answer, &mut self.ids);
        self.has_made = true;
        self.change(&to, &id, &making.later).await
    }

    async fn change(&self, to: &Ref, id: &str, fields: &[String]) -> Result<(), Error> {
        let Some(resource) = self.model.find(to) else { return Ok(()) };
        for call in direct::changes(resource, id, self.there, &self.ids, fields)? {
            self.ask(&call).await?;
        }
        Ok(())
    }

    /// Asks, and again while AWS does not know yet what was made.
    async fn ask(&self, call: &Call) -> Result<Value, Error> {
        let (mut backoff, until) = (pauses(), Instant::now() + KNOWN);
        loop {
            let asked = self.client.call(call.service, call.operation, &call.parameters).await;
            match asked {
                Err(error) if self.has_made && is_unknown_yet(&error) && Instant::now() < until => {
                }
                asked => return Ok(asked?),
            }
            sleep(backoff.next(rt::random())).await;
        }
    }
}

fn pauses() -> rt::Backoff {
    rt::Backoff::new(FIRST_PAUSE, LONGEST_PAUSE)
}

fn is_unknown_yet(error: &aws::Error) -> bool {
    let text = error.to_string().to_lowercase();
    error.is_absent()
        || (text.contains("instance") && text.contains("profile") && text.contains("invalid"))
}

/// Deletes, in order: what is in the way of others is waited for by those.
pub(super) async fn erase(client: &aws::Client, erasures: &[Erasure]) -> Result<(), Error> {
    for call in erasures.iter().flat_map(Erasure::calls) {
        erase_one(client, call).await?;
    }
    Ok(())
}

async fn erase_one(client: &aws::Client, call: &Call) -> Result<(), Error> {
    let (mut backoff, until) = (pauses(), Instant::now() + GONE);
    loop {
        let asked = client.call(call.service, call.operation, &call.parameters).await;
        let busy = |error: &aws::Error| {
            // An address of a NAT gateway that is not gone yet is answered for as if it were another's.
            BUSY.iter().any(|word| error.code().contains(word))
                || (call.operation == "ReleaseAddress" && error.code() == "AuthFailure")
        };
        match asked {
            Ok(_) => return Ok(()),
            Err(error) if error.is_absent() => return Ok(()),
            Err(error) if busy(&error) && Instant::now() < until => {}
            Err(error) => return Err(error.into()),
        }
        sleep(backoff.next(rt::random())).await;
    }
}
