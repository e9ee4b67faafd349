//! Decides which plugins are reinvoked. After a policy or webhook has changed the object, the built-in plugins run
//! again. Then policies and webhooks with `reinvocationPolicy: IfNeeded` run again if the object changed after their
//! call. There is one such second round.

use std::collections::BTreeSet;

use serde_json::Value;

/// The mutating policies or the mutating webhooks, which run in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MutatorKind {
    Policies,
    Webhooks,
}

/// The reinvocation state of one request.
#[derive(Debug, Default)]
pub struct Rounds {
    second: bool,
    /// `true` if a policy or webhook changed the object.
    changed: bool,
    policies: Reinvocations,
    webhooks: Reinvocations,
}

/// The reinvocation state of the policies or of the webhooks, by their id.
#[derive(Debug, Default)]
struct Reinvocations {
    /// Reinvocable ones that were called since the last change.
    called: BTreeSet<String>,
    /// Reinvocable ones that must be called again.
    required: BTreeSet<String>,
    /// The object after their part of the first round.
    last_object: Option<Value>,
}

impl Reinvocations {
    fn require(&mut self) {
        self.required.append(&mut self.called);
    }
}

impl Rounds {
    fn of(&mut self, side: MutatorKind) -> &mut Reinvocations {
        match side {
            MutatorKind::Policies => &mut self.policies,
            MutatorKind::Webhooks => &mut self.webhooks,
        }
    }

    /// Ends a round and returns `true` if no second round is needed.
    pub fn is_over(&mut self) -> bool {
        let over = self.second || !self.changed;
        self.second = true;
        over
    }

    /// Starts the part of one side with the current object.
    pub fn begin(&mut self, side: MutatorKind, object: &Value) {
        let state = self.of(side);
        if state.last_object.take().is_some_and(|last| last != *object) {
            state.require();
        }
    }

    /// Ends the part of one side with the object that it produced.
    pub fn end(&mut self, side: MutatorKind, object: &Value) {
        let first = !self.second;
        let state = self.of(side);
        // The object is needed only if one of this side is reinvocable.
        if first && !(state.called.is_empty() && state.required.is_empty()) {
            state.last_object = Some(object.clone());
        }
    }

    /// Reports whether a policy or webhook is called in this round. The second round calls none for the first time.
    pub fn includes(&self, side: MutatorKind, id: &str) -> bool {
        let state = match side {
            MutatorKind::Policies => &self.policies,
            MutatorKind::Webhooks => &self.webhooks,
        };
        !self.second || state.required.contains(id)
    }

    /// Records a call, and whether it changed the object.
    pub fn record_call(&mut self, side: MutatorKind, id: &str, reinvocable: bool, changed: bool) {
        if changed {
            self.record_change(side);
        }
        if reinvocable {
            self.of(side).called.insert(id.to_owned());
        }
    }

    /// Records a change by one side. The built-in plugins and the reinvocable members of the side run again.
    pub fn record_change(&mut self, side: MutatorKind) {
        self.changed = true;
        self.of(side).require();
    }

    /// Returns 0 or 1, the round's number in audit annotations.
    pub fn number(&self) -> u8 {
        u8::from(self.second)
    }
}
