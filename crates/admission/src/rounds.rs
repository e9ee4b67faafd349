//! Who is asked again: when a policy or a webhook has changed the object, plugins look at it once more, and then those
//! policies and webhooks whose `reinvocationPolicy` is `IfNeeded` if anything was changed after they had seen it. There is
//! one such second round.

use std::collections::BTreeSet;

use serde_json::Value;

/// Those who may change an object, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Policies,
    Webhooks,
}

/// The rounds of one request.
#[derive(Debug, Default)]
pub struct Rounds {
    second: bool,
    /// Whether anybody has changed the object.
    changed: bool,
    policies: Turns,
    webhooks: Turns,
}

/// Policies or webhooks, by what tells them apart.
#[derive(Debug, Default)]
struct Turns {
    /// Those that want to be asked again, and were asked since the last change.
    asked: BTreeSet<String>,
    /// Those of them that must be.
    again: BTreeSet<String>,
    /// The object as they left it in the first round.
    left: Option<Value>,
}

impl Turns {
    fn require(&mut self) {
        self.again.append(&mut self.asked);
    }
}

impl Rounds {
    fn of(&mut self, side: Side) -> &mut Turns {
        match side {
            Side::Policies => &mut self.policies,
            Side::Webhooks => &mut self.webhooks,
        }
    }

    /// Ends a round. Returns whether there is no other.
    pub fn is_over(&mut self) -> bool {
        let over = self.second || !self.changed;
        self.second = true;
        over
    }

    /// Begins the part of one side, with what others have made of the object.
    pub fn begin(&mut self, side: Side, object: &Value) {
        let turns = self.of(side);
        if turns.left.take().is_some_and(|left| left != *object) {
            turns.require();
        }
    }

    /// Ends it, with what it has made of the object.
    pub fn end(&mut self, side: Side, object: &Value) {
        let first = !self.second;
        let turns = self.of(side);
        // What others do concerns only those who want to hear of it.
        if first && !(turns.asked.is_empty() && turns.again.is_empty()) {
            turns.left = Some(object.clone());
        }
    }

    /// Whether it is somebody's turn. In the second round nobody is asked for the first time.
    pub fn includes(&self, side: Side, id: &str) -> bool {
        let turns = match side {
            Side::Policies => &self.policies,
            Side::Webhooks => &self.webhooks,
        };
        !self.second || turns.again.contains(id)
    }

    /// Notes that somebody was asked, and whether he has changed the object.
    pub fn asked(&mut self, side: Side, id: &str, reinvocable: bool, changed: bool) {
        if changed {
            self.touched(side);
        }
        if reinvocable {
            self.of(side).asked.insert(id.to_owned());
        }
    }

    /// Has all of a side look again, and plugins before them.
    pub fn touched(&mut self, side: Side) {
        self.changed = true;
        self.of(side).require();
    }

    /// 0 or 1, as annotations have it.
    pub fn number(&self) -> u8 {
        u8::from(self.second)
    }
}
