//! Carries out plans, call by call. AWS is eventually consistent, and deleted resources block others for a while. Calls
//! that fail for these reasons are retried for a limited time.

use std::time::Duration;

use kops_core::{
    direct::{self, Call, Change, Deletion, ExistingResources, Ids},
    model::aws::{Model, Ref},
};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::error::Error;

/// The time for AWS to propagate new resources.
const PROPAGATION_TIMEOUT: Duration = Duration::from_secs(180);
/// The time for machines and load balancers to disappear when they block other deletions.
const BLOCKED_TIMEOUT: Duration = Duration::from_secs(900);
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// AWS' error codes for a blocked deletion.
const BUSY: [&str; 6] = [
    "DependencyViolation",
    "InUse",
    "ScalingActivityInProgress",
    "DeleteConflict",
    "IncorrectState",
    "ResourceContention",
];

/// AWS' error codes for a call that the user may not make.
const DENIED: [&str; 3] = ["AccessDenied", "UnauthorizedOperation", "AuthorizationError"];

/// Carries out the changes of a plan.
pub struct Actor<'a> {
    client: &'a aws::Client,
    model: &'a Model,
    existing: &'a ExistingResources,
    ids: Ids,
    /// `true` if a resource was created that AWS may not have propagated yet.
    has_created: bool,
}

impl<'a> Actor<'a> {
    /// Returns an actor for a model. `ids` are the IDs of existing resources.
    pub fn new(
        client: &'a aws::Client,
        model: &'a Model,
        existing: &'a ExistingResources,
        ids: Ids,
    ) -> Self {
        Self { client, model, existing, ids, has_created: false }
    }

    /// Carries out changes in order. Returns the errors of optional changes that AWS denied.
    pub async fn carry_out(&mut self, changes: &[Change]) -> Result<Vec<String>, Error> {
        let mut warnings = Vec::new();
        for change in changes {
            match self.carry_out_one(change).await {
                Err(Error::Call(error)) if change.is_optional && is_denied(&error) => {
                    warnings.push(format!("{}/{} is skipped: {error}", change.task(), change.name));
                }
                done => done?,
            }
        }
        Ok(warnings)
    }

    async fn carry_out_one(&mut self, change: &Change) -> Result<(), Error> {
        match change.verb {
            "create" => self.create(change).await,
            "modify" => {
                let to = Ref::new(change.kind, change.name.clone());
                let id = self.ids.get(&to).cloned().unwrap_or_default();
                self.change(&to, &id, &change.fields).await
            }
            _ => {
                for call in &change.calls {
                    erase_one(self.client, call).await?;
                }
                Ok(())
            }
        }
    }

    async fn create(&mut self, change: &Change) -> Result<(), Error> {
        let to = Ref::new(change.kind, change.name.clone());
        let Some(resource) = self.model.find(&to) else { return Ok(()) };
        let creation = direct::plan_creation(resource, &self.ids)?;
        let response = match self.call_with_retry(&creation.call).await {
            // A new security group has default rules, which may include a wanted one.
            Err(Error::Call(error)) if error.code() == "InvalidPermission.Duplicate" => Value::Null,
            response => response?,
        };
        let id = creation.record_id(resource, &response, &mut self.ids);
        self.has_created = true;
        self.change(&to, &id, &creation.later).await
    }

    async fn change(&self, to: &Ref, id: &str, fields: &[String]) -> Result<(), Error> {
        let Some(resource) = self.model.find(to) else { return Ok(()) };
        for call in direct::update_calls(resource, id, self.existing, &self.ids, fields)? {
            self.call_with_retry(&call).await?;
        }
        Ok(())
    }

    /// Makes a call, and retries it while AWS has not propagated a created resource.
    async fn call_with_retry(&self, call: &Call) -> Result<Value, Error> {
        let (mut backoff, until) = (backoff(), Instant::now() + PROPAGATION_TIMEOUT);
        loop {
            let result = self.client.call(call.service, call.operation, &call.parameters).await;
            match result {
                Err(error)
                    if self.has_created && is_unknown_yet(&error) && Instant::now() < until => {}
                result => return Ok(result?),
            }
            sleep(backoff.next(rt::random())).await;
        }
    }
}

fn backoff() -> rt::Backoff {
    rt::Backoff::new(FIRST_PAUSE, LONGEST_PAUSE)
}

/// Reports whether AWS refused a call because the user may not make it.
fn is_denied(error: &aws::Error) -> bool {
    DENIED.iter().any(|code| error.code().starts_with(code))
}

fn is_unknown_yet(error: &aws::Error) -> bool {
    let text = error.to_string().to_lowercase();
    error.is_absent()
        || (text.contains("instance") && text.contains("profile") && text.contains("invalid"))
}

/// Deletes resources in order. Each call is retried while another resource blocks it.
pub async fn erase(client: &aws::Client, erasures: &[Deletion]) -> Result<(), Error> {
    for call in erasures.iter().flat_map(Deletion::calls) {
        erase_one(client, call).await?;
    }
    Ok(())
}

async fn erase_one(client: &aws::Client, call: &Call) -> Result<(), Error> {
    let (mut backoff, until) = (backoff(), Instant::now() + BLOCKED_TIMEOUT);
    loop {
        let result = client.call(call.service, call.operation, &call.parameters).await;
        let busy = |error: &aws::Error| {
            // AWS reports the address of a NAT gateway in deletion as belonging to another account.
            BUSY.iter().any(|word| error.code().contains(word))
                || (call.operation == "ReleaseAddress" && error.code() == "AuthFailure")
        };
        match result {
            Ok(_) => return Ok(()),
            Err(error) if error.is_absent() => return Ok(()),
            Err(error) if busy(&error) && Instant::now() < until => {}
            Err(error) => return Err(error.into()),
        }
        sleep(backoff.next(rt::random())).await;
    }
}
