//! Scheduler extenders: answers the core's questions by HTTP calls to programs beside the scheduler.
//!
//! Extenders are not trusted to answer: each call is limited in time and size, and an answer may only name nodes and
//! Pods that exist. An extender that fails fails the attempt of one Pod, or nothing if it is ignorable.

mod call;
mod settings;
mod wire;

use std::{collections::HashMap, sync::Arc};

use client::{Client, Informer, ListOptions, Resource};
use futures_util::future::join_all;
use sched_core::{
    AcceptedNode, Answer, Consultation, NodeOpinions, NodeVictims, Pod, Question, RejectedNode,
};
use serde_json::Value;

use crate::state::Shared;

pub(crate) use call::CallError;
pub use settings::Extender;
pub(crate) use settings::compile;
use wire::shorten;

/// The number of different reasons of one extender that are shown; others are counted together.
const REASONS_LIMIT: usize = 16;
const OTHER_REASONS: &str = "node(s) were rejected by an extender for other reasons";
/// The number of victims that are read at the same time, for an extender that gets them as the API has them.
const PARALLEL_READS: usize = 16;
/// The factor between the scores of extenders, up to 10, and those of plugins, up to 100.
const SCORE_SCALE: i64 = 10;

/// Asks the extenders.
pub(crate) struct Extenders {
    all: Vec<Arc<Extender>>,
    client: Client,
    shared: Arc<Shared>,
    /// The Nodes as the API has them, for extenders that do not cache nodes.
    nodes: Option<Informer<Value>>,
}

impl Extenders {
    pub(crate) fn start(
        all: &[Arc<Extender>],
        client: &Client,
        shared: &Arc<Shared>,
        tasks: &rt::Tasks,
    ) -> Arc<Self> {
        let sends_nodes = |extender: &Arc<Extender>| {
            !extender.caches_nodes && (extender.core.filters || extender.core.scores)
        };
        let nodes = all.iter().any(sends_nodes).then(|| {
            let (nodes, options) = (Resource::NODES, ListOptions::default());
            Informer::start(client, nodes, options, tasks, |_| {})
        });
        let (client, shared) = (client.clone(), shared.clone());
        Arc::new(Self { all: all.to_vec(), client, shared, nodes })
    }

    /// Waits until the Nodes are known, if an extender needs them.
    pub(crate) async fn synced(&self) {
        if let Some(nodes) = &self.nodes {
            nodes.synced().await;
        }
    }

    /// Answers a question of the core.
    pub(crate) async fn ask(&self, consultation: &Consultation) -> Answer {
        let answer = match &consultation.question {
            Question::Nodes(nodes) => {
                self.opinions(&consultation.pod, nodes).await.map(Answer::Nodes)
            }
            Question::Victims(victims) => {
                self.victims(&consultation.pod, victims.clone()).await.map(Answer::Victims)
            }
        };
        answer.unwrap_or_else(|error| {
            tracing::warn!(pod = %consultation.pod.id, %error, "an extender failed");
            Answer::Failed(error.to_string())
        })
    }

    /// Lets an extender bind the Pod; `None` if none does.
    pub(crate) async fn bind(&self, pod: &Pod, node: &str) -> Option<Result<(), CallError>> {
        for extender in self.interested(pod).filter(|extender| extender.binds()) {
            match extender.bind(pod, node).await {
                Err(error) if extender.ignorable => skip(extender, pod, &error),
                bound => return Some(bound),
            }
        }
        None
    }

    fn interested<'a>(&'a self, pod: &'a Pod) -> impl Iterator<Item = &'a Arc<Extender>> {
        self.all.iter().filter(|extender| extender.core.is_interested(pod))
    }

    /// Returns the Pod as the API has it.
    async fn object(&self, pod: &Pod) -> Result<Value, CallError> {
        let id = &pod.id;
        let found = self.client.get::<Value>(&Resource::PODS, &id.namespace, &id.name).await;
        let found = found.map_err(|source| CallError::Pod { pod: id.to_string(), source })?;
        if found["metadata"]["uid"] != *id.uid {
            return Err(CallError::Recreated { pod: id.to_string() });
        }
        Ok(found)
    }

    /// Filters and scores nodes. The extenders filter one after another, and each sees the nodes that are left.
    async fn opinions(&self, pod: &Pod, nodes: &[Arc<str>]) -> Result<NodeOpinions, CallError> {
        let object = self.object(pod).await?;
        let mut left = nodes.to_vec();
        let mut rejected = Vec::new();
        for extender in self.interested(pod).filter(|extender| extender.core.filters) {
            if left.is_empty() {
                break;
            }
            match extender.filter(&object, &left, self.nodes.as_ref()).await {
                Ok(filtered) => {
                    left = filtered.accepted;
                    rejected.extend(limit_reasons(filtered.rejected));
                }
                Err(error) if extender.ignorable => skip(extender, pod, &error),
                Err(error) => return Err(error),
            }
        }
        let scores =
            if left.len() > 1 { self.scores(pod, &object, &left).await } else { HashMap::new() };
        let accepted = left.into_iter().map(|name| {
            let score = scores.get(&name).copied().unwrap_or(0);
            AcceptedNode { name, score }
        });
        Ok(NodeOpinions { accepted: accepted.collect(), rejected })
    }

    /// Returns the weighted sums of the extenders' scores. An extender that fails gives no scores.
    async fn scores(
        &self,
        pod: &Pod,
        object: &Value,
        nodes: &[Arc<str>],
    ) -> HashMap<Arc<str>, i64> {
        let scoring = self.interested(pod).filter(|extender| extender.core.scores);
        let calls = scoring.map(async |extender| {
            let scores = extender.prioritize(object, nodes, self.nodes.as_ref()).await;
            let scores = scores.unwrap_or_else(|error| {
                skip(extender, pod, &error);
                Vec::new()
            });
            (extender.weight.saturating_mul(SCORE_SCALE), scores)
        });
        let mut sums: HashMap<Arc<str>, i64> = HashMap::new();
        for (weight, scores) in join_all(calls).await {
            for (node, score) in scores {
                let sum = sums.entry(node).or_default();
                *sum = sum.saturating_add(weight.saturating_mul(score));
            }
        }
        sums
    }

    /// Lets the extenders choose victims, one after another.
    async fn victims(
        &self,
        pod: &Pod,
        mut victims: Vec<NodeVictims>,
    ) -> Result<Vec<NodeVictims>, CallError> {
        let object = self.object(pod).await?;
        for extender in self.interested(pod).filter(|extender| extender.core.preempts) {
            match self.victims_of(extender, &object, &victims).await {
                Ok(chosen) => victims = chosen,
                Err(error) if extender.ignorable => skip(extender, pod, &error),
                Err(error) => return Err(error),
            }
            if victims.is_empty() {
                break;
            }
        }
        Ok(victims)
    }

    async fn victims_of(
        &self,
        extender: &Extender,
        object: &Value,
        victims: &[NodeVictims],
    ) -> Result<Vec<NodeVictims>, CallError> {
        let mut objects = HashMap::new();
        if !extender.caches_nodes {
            let pods: Vec<_> = victims.iter().flat_map(|node| &node.pods).collect();
            for some in pods.chunks(PARALLEL_READS) {
                let found = join_all(some.iter().map(|pod| self.object(pod))).await;
                for (pod, object) in some.iter().zip(found) {
                    objects.insert(pod.id.uid.clone(), object?);
                }
            }
        }
        let chosen = extender.preempt(object, victims, &objects).await?;
        let core = self.shared.core();
        let mut out = Vec::with_capacity(chosen.len());
        for (node, chosen) in chosen {
            let Some(pods) = core.pods_on(&node) else {
                return Err(CallError::NoNode { url: extender.url().to_owned(), node });
            };
            let find = |uid: &String| {
                let pod = pods.iter().find(|pod| *pod.id.uid == **uid).cloned();
                pod.ok_or_else(|| CallError::NoVictim {
                    url: extender.url().to_owned(),
                    uid: shorten(uid.clone()),
                    node: node.clone(),
                })
            };
            let pods = chosen.uids.iter().map(find).collect::<Result<Vec<_>, _>>()?;
            match pods.is_empty() {
                true if extender.ignorable => {}
                true => return Err(CallError::NoVictims { node }),
                false => {
                    out.push(NodeVictims { node: node.into(), pods, violations: chosen.violations })
                }
            }
        }
        Ok(out)
    }
}

fn skip(extender: &Extender, pod: &Pod, error: &CallError) {
    tracing::info!(pod = %pod.id, extender = extender.url(), %error, "the extender is left out");
}

/// Replaces reasons beyond the limit by a common one, so that messages stay short.
fn limit_reasons(mut rejected: Vec<RejectedNode>) -> Vec<RejectedNode> {
    let mut known: Vec<String> = Vec::new();
    for node in &mut rejected {
        if known.contains(&node.message) {
            continue;
        }
        if known.len() < REASONS_LIMIT {
            known.push(node.message.clone());
        } else {
            node.message = OTHER_REASONS.to_owned();
        }
    }
    rejected
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_reasons_and_their_length() {
        let node = |at: usize| RejectedNode {
            name: format!("n{at}").into(),
            message: format!("reason {at}"),
            unresolvable: false,
        };
        let limited = limit_reasons((0..100).map(node).collect());
        assert_eq!(limited.len(), 100);
        assert_eq!(limited[REASONS_LIMIT - 1].message, "reason 15");
        assert!(limited[REASONS_LIMIT..].iter().all(|node| node.message == OTHER_REASONS));
        assert_eq!(shorten("é".repeat(1024)).len(), 1024);
    }
}
