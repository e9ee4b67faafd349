//! Restarts all containers of a Pod in its sandbox, after one of them has exited as a restart rule says (KEP-5532).
//!
//! The exited container is removed last. Until then it shows that a restart is under way, also to a restarted kubelet.

use k8s_openapi::api::core::v1::Pod;

use crate::{
    observed::{Container, Observed, Run},
    spec::{Role, members, restarts_all},
    step::{KillReason, Step},
    time::Timestamp,
};

/// An exit that restarts all containers of a Pod.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trigger<'a> {
    run: &'a Container,
    code: i32,
    finished: Timestamp,
}

impl<'a> Trigger<'a> {
    /// Finds the container of a ready sandbox whose exit restarts all.
    pub(crate) fn find(pod: &Pod, observed: &'a Observed) -> Option<Self> {
        let sandbox = observed.ready_sandbox()?;
        members(pod).iter().find_map(|member| {
            let run = observed.newest_in(&member.container.name, &sandbox.id)?;
            let Run::Exited { finished, code, .. } = run.run else { return None };
            restarts_all(member, code).then_some(Self { run, code, finished })
        })
    }

    /// Returns the name of the container, and the time of its end.
    pub(crate) fn exit(&self) -> (&'a str, Timestamp) {
        (&self.run.name, self.finished)
    }

    /// Returns the message of the Pod's condition.
    pub(crate) fn message(&self) -> String {
        let (name, code) = (&self.run.name, self.code);
        format!("Container {name} exited with code {code}, triggering pod restart")
    }

    /// Returns the steps that end and remove all other containers except ephemeral ones. If there are none, returns the
    /// removal of the exited one, after which the Pod starts as if it were new.
    pub(crate) fn steps(&self, pod: &Pod, observed: &Observed) -> Vec<Step> {
        let members = members(pod);
        let is_ephemeral = |name: &str| {
            members.iter().any(|m| m.role == Role::Ephemeral && m.container.name == name)
        };
        let others: Vec<&Container> = observed
            .containers
            .iter()
            .filter(|c| c.id != self.run.id && !is_ephemeral(&c.name))
            .collect();
        let kill = |c: &&Container| Step::Kill {
            id: c.id.clone(),
            name: c.name.clone(),
            why: KillReason::RestartAll,
        };
        let kills: Vec<Step> = others.iter().filter(|c| c.is_running()).map(kill).collect();
        if !kills.is_empty() {
            return kills;
        }
        if others.is_empty() {
            let (id, name) = (self.run.id.clone(), self.run.name.clone());
            return vec![Step::RestartAll { id, name, exited: self.finished }];
        }
        others.iter().map(|c| Step::Remove { id: c.id.clone() }).collect()
    }
}
