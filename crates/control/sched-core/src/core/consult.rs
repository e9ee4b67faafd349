//! Consultation of extenders: a Pod that concerns one is decided in steps, with a question to the extenders in between.
//!
//! Extenders are asked about a single Pod at a time, so that they see one attempt after another, as upstream's do. Pods
//! that concern no extender are decided meanwhile.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    sync::Arc,
};

use super::{
    Core, Decision, Failure,
    consultations::{AskedNodes, OpenQuestion, Rejection, Subject},
    give_up::NO_CANDIDATE,
};
use crate::{
    extenders::{Answer, Consultation, NodeOpinions, NodeVictims, Question, Roles},
    index::NodeIx,
    pod::Pod,
    preempt::{Candidate, pick},
    queue::EXTENDERS,
    schedule::{Feasible, Placement, find_feasible, schedule_among},
};

impl Core {
    /// Returns the calls that extenders support for a Pod.
    pub(super) fn roles(&self, pod: &Pod) -> Roles {
        if self.cluster.groups.key_of(pod).is_some() {
            return Roles::default();
        }
        Roles::of(&self.config.extenders, pod)
    }

    /// Lets a Pod that concerns extenders wait while they are asked about another one.
    pub(super) fn waits_for_extenders(&mut self, pod: &Pod) -> bool {
        let waits = self.consultations.open.is_some() && self.roles(pod).is_any();
        if waits {
            let all = &mut self.consultations;
            all.waiting.insert((Reverse(pod.priority), all.arrivals, pod.id.uid.clone()));
            all.arrivals += 1;
        }
        waits
    }

    /// Returns the next Pod that has waited for extenders, if they are free.
    pub(super) fn next_to_consult(&mut self) -> Option<Arc<Pod>> {
        if self.consultations.open.is_some() {
            return None;
        }
        while let Some((.., uid)) = self.consultations.waiting.pop_first() {
            // It may be gone, or held back by a gate.
            if let Some(pod) = self.queue.taken(&uid) {
                return Some(pod);
            }
        }
        None
    }

    /// Finds the nodes that the Pod fits on and asks the extenders about them.
    pub(super) fn consult(
        &mut self,
        pod: Arc<Pod>,
        roles: Roles,
        tries_nomination: bool,
        now: u64,
    ) -> Decision {
        if tries_nomination && let Some(node) = self.fitting_nomination(&pod) {
            if !roles.filters {
                return self.place(pod, Placement { node, evaluated: 1, feasible: 1 }, now);
            }
            let name = self.cluster.node(node).name.clone();
            let question = Question::Nodes(vec![name.clone()]);
            return self.ask(pod, Subject::Nomination(name), question);
        }
        let Feasible { nodes, evaluated, diagnosis } =
            find_feasible(&mut self.cluster, &pod, &self.nominated, &mut self.turn);
        match nodes[..] {
            [] => self.give_up(pod, &diagnosis, now),
            [node] if !roles.filters => {
                self.place(pod, Placement { node, evaluated, feasible: 1 }, now)
            }
            _ => {
                let names = |all: &[NodeIx]| -> Vec<Arc<str>> {
                    all.iter().map(|node| self.cluster.node(*node).name.clone()).collect()
                };
                let (nodes, preemptible) = (names(&nodes), names(&diagnosis.candidates));
                let question = Question::Nodes(nodes.clone());
                let asked = AskedNodes { nodes, evaluated, diagnosis, preemptible };
                self.ask(pod, Subject::Nodes(asked), question)
            }
        }
    }

    /// Asks the extenders which victims to evict.
    pub(super) fn ask_about_victims(
        &mut self,
        pod: Arc<Pod>,
        rejection: Rejection,
        candidates: Vec<Candidate>,
    ) -> Decision {
        let victims = candidates.into_iter().map(|candidate| NodeVictims {
            node: self.cluster.node(candidate.node).name.clone(),
            pods: candidate.victims,
            violations: candidate.violations,
        });
        let question = Question::Victims(victims.collect());
        self.ask(pod, Subject::Victims(rejection), question)
    }

    fn ask(&mut self, pod: Arc<Pod>, subject: Subject, question: Question) -> Decision {
        let id = self.consultations.next;
        self.consultations.next += 1;
        let events = self.attempt_began.unwrap_or_else(|| self.queue.events());
        let uid = pod.id.uid.clone();
        self.consultations.open = Some(OpenQuestion { id, uid, events, subject });
        Decision::Consult(Consultation { id, pod, question })
    }

    /// Continues with the answer to a question. Returns `None` if the Pod is gone, or the question is not open.
    pub fn answer(&mut self, id: u64, answer: Answer, now: u64) -> Option<Decision> {
        let OpenQuestion { uid, events, subject, .. } =
            self.consultations.open.take_if(|question| question.id == id)?;
        let pod = self.queue.taken(&uid)?;
        self.current = Some(pod.clone());
        self.attempt_began = Some(events);
        let decision = self.continue_with(pod, subject, answer, now);
        self.attempt_began = None;
        if let Some(pod) = self.current.take() {
            self.suspects.remove(&pod.id.uid);
        }
        self.announce(&decision, now);
        Some(decision)
    }

    fn continue_with(
        &mut self,
        pod: Arc<Pod>,
        subject: Subject,
        answer: Answer,
        now: u64,
    ) -> Decision {
        match (subject, answer) {
            (Subject::Nodes(asked), Answer::Nodes(opinions)) => {
                self.decide_by_opinions(pod, asked, opinions, now)
            }
            (Subject::Nomination(node), Answer::Nodes(opinions)) => {
                let accepted = self.known(&[node], &opinions);
                match self.place_among(&pod, &accepted, 1, now) {
                    Some(decision) => decision,
                    None => self.consult_again(pod, now),
                }
            }
            // A failure at the nominated node does not keep the Pod from others.
            (Subject::Nomination(_), _) => self.consult_again(pod, now),
            (Subject::Victims(rejection), Answer::Victims(victims)) => {
                let candidates = victims.into_iter().filter_map(|v| self.candidate(v)).collect();
                let chosen = pick(candidates).ok_or_else(|| NO_CANDIDATE.to_owned());
                self.conclude(pod, rejection, Some(chosen), now)
            }
            (Subject::Victims(rejection), Answer::Failed(reason)) => {
                self.conclude(pod, rejection, Some(Err(reason)), now)
            }
            (_, Answer::Failed(reason)) => self.fail(pod, reason, now),
            (_, Answer::Nodes(_) | Answer::Victims(_)) => {
                self.fail(pod, "the answer does not belong to the question".to_owned(), now)
            }
        }
    }

    /// Asks about all nodes, as the cluster is now.
    fn consult_again(&mut self, pod: Arc<Pod>, now: u64) -> Decision {
        self.attempt_began = None;
        let roles = self.roles(&pod);
        self.consult(pod, roles, false, now)
    }

    fn decide_by_opinions(
        &mut self,
        pod: Arc<Pod>,
        asked: AskedNodes,
        opinions: NodeOpinions,
        now: u64,
    ) -> Decision {
        if !opinions.accepted.is_empty() {
            let accepted = self.known(&asked.nodes, &opinions);
            let placed = self.place_among(&pod, &accepted, asked.evaluated, now);
            // Other Pods may have taken the nodes since the question.
            return placed.unwrap_or_else(|| self.consult_again(pod, now));
        }
        let AskedNodes { nodes, mut diagnosis, preemptible, .. } = asked;
        let find = |name: &Arc<str>| self.cluster.find_node(name);
        diagnosis.candidates = preemptible.iter().filter_map(find).collect();
        let nodes: HashSet<Arc<str>> = nodes.into_iter().collect();
        for rejected in opinions.rejected.into_iter().filter(|r| nodes.contains(&r.name)) {
            diagnosis.reasons.add(rejected.message.into(), 1);
            let node = self.cluster.find_node(&rejected.name);
            diagnosis.candidates.extend(node.filter(|_| !rejected.unresolvable));
        }
        diagnosis.plugins |= EXTENDERS;
        self.give_up(pod, &diagnosis, now)
    }

    /// Returns the accepted nodes that the question was about and that still exist, with their scores.
    fn known(&self, asked: &[Arc<str>], opinions: &NodeOpinions) -> Vec<(NodeIx, i64)> {
        let scores: HashMap<&str, i64> =
            opinions.accepted.iter().map(|node| (&*node.name, node.score)).collect();
        let score = |name: &Arc<str>| Some((self.cluster.find_node(name)?, *scores.get(&**name)?));
        asked.iter().filter_map(score).collect()
    }

    fn place_among(
        &mut self,
        pod: &Arc<Pod>,
        accepted: &[(NodeIx, i64)],
        evaluated: usize,
        now: u64,
    ) -> Option<Decision> {
        let (cluster, nominated) = (&mut self.cluster, &self.nominated);
        let found = schedule_among(cluster, pod, accepted, nominated, &mut self.turn)?;
        Some(self.place(pod.clone(), Placement { evaluated, ..found }, now))
    }

    /// Returns the victims that are still on their node.
    fn candidate(&self, victims: NodeVictims) -> Option<Candidate> {
        let node = self.cluster.find_node(&victims.node)?;
        let is_here = |pod: &Arc<Pod>| {
            self.cluster.placement(&pod.id.uid).is_some_and(|(placed, _)| placed == node)
        };
        let pods: Vec<_> = victims.pods.into_iter().filter(is_here).collect();
        let violations = victims.violations;
        (!pods.is_empty()).then_some(Candidate { node, victims: pods, violations })
    }

    /// Requeues a Pod after an error of an extender.
    fn fail(&mut self, pod: Arc<Pod>, message: String, now: u64) -> Decision {
        self.clear_nomination(&pod.id.uid);
        let tries = self.queue.tries(&pod.id.uid, now);
        self.queue.requeue(pod.clone(), tries, now);
        Decision::Unschedulable(Failure { is_error: true, ..Failure::plain(pod, message) })
    }

    /// Parks a Pod until an event that may help it, or until the end of its backoff if there was one in its attempt.
    pub(super) fn park(&mut self, pod: &Pod, plugins: u32, now: u64) {
        match self.attempt_began {
            Some(events) => self.queue.park_since(&pod.id.uid, plugins, events, now),
            None => self.queue.park(&pod.id.uid, plugins, now),
        }
    }

    /// Returns the Pods on a node, bound or assumed; `None` if there is no such node.
    pub fn pods_on(&self, node: &str) -> Option<&[Arc<Pod>]> {
        self.cluster.find_node(node).map(|ix| self.cluster.pods_on(ix))
    }
}
