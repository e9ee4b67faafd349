//! Who is asked again: when a webhook has changed the object, plugins look at it once more, and then those webhooks whose
//! `reinvocationPolicy` is `IfNeeded` if anything was changed after they had seen it. There is one such second round.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Webhook;

/// The rounds of one request.
#[derive(Debug, Default)]
pub struct Rounds {
    second: bool,
    /// Whether a webhook has changed the object.
    changed: bool,
    /// Those that want to be asked again, and were asked since the last change.
    asked: BTreeSet<String>,
    /// Those of them that must be.
    again: BTreeSet<String>,
    /// The object as the first round left it.
    left: Option<Value>,
}

impl Rounds {
    /// Ends the first round. Returns whether there is a second, which plugins begin.
    pub fn is_over(&mut self, object: &Value) -> bool {
        if self.second || !self.changed {
            return true;
        }
        self.second = true;
        self.left = Some(object.clone());
        false
    }

    /// Begins the second round's webhooks, with what plugins have made of the object.
    pub fn resume(&mut self, object: &Value) {
        if self.left.take().is_some_and(|left| left != *object) {
            self.require();
        }
    }

    /// Whether it is a webhook's turn. In the second round nobody is asked for the first time.
    pub fn includes(&self, webhook: &Webhook) -> bool {
        !self.second || self.again.contains(&webhook.id)
    }

    /// Notes that a webhook was asked, and whether it has changed the object.
    pub fn asked(&mut self, webhook: &Webhook, changed: bool) {
        if changed {
            self.changed = true;
            self.require();
        }
        if webhook.reinvocable {
            self.asked.insert(webhook.id.clone());
        }
    }

    /// 0 or 1, as annotations have it.
    pub fn number(&self) -> u8 {
        u8::from(self.second)
    }

    fn require(&mut self) {
        self.again.append(&mut self.asked);
    }
}
