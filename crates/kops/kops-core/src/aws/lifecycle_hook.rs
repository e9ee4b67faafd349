//! The lifecycle hooks of scaling groups.
//!
//! AWS lists hooks only group by group. To avoid a call for each group, a tag on the group records each hook that was
//! created. A group is only queried if a wanted hook has no such tag.

use std::collections::BTreeSet;

use api_meta::Tree as _;
use serde_json::{Value, json};

use super::{
    family::*,
    fields::{fields, id, tags},
    scaling_group::{autoscaling, present},
};

/// The prefix of the tags that record hooks. The hook's name follows; the value is [`record`].
const RECORD: &str = "kops.k8s.io/lifecycle-hook/";
/// The field that is `true` if the group's tag records the hook as it is.
const RECORDED: &str = "Recorded";

/// A hook that delays the start or the end of a group's machines.
#[derive(Clone, Debug)]
pub struct LifecycleHook {
    /// The scaling group.
    pub group: Ref,
    /// The hook's name within its group.
    pub hook: String,
    /// The result after the timeout.
    pub result: String,
    /// The timeout in seconds.
    pub heartbeat: i64,
    /// The delayed transition.
    pub transition: String,
}

impl LifecycleHook {
    /// Returns the call that creates the hook, or replaces it.
    fn put(&self, ids: &Ids) -> Call {
        let request = json!({"AutoScalingGroupName": id(ids, &self.group), "LifecycleHookName": self.hook,
            "DefaultResult": self.result, "HeartbeatTimeout": self.heartbeat, "LifecycleTransition": self.transition});
        autoscaling("PutLifecycleHook", request)
    }
}

/// Returns the value of the tag that records a hook.
fn record(result: &str, heartbeat: &str, transition: &str) -> String {
    format!("{result} {heartbeat} {transition}")
}

/// Returns the tag of a group that records a hook, in the form of calls.
fn record_tag(group: &str, hook: &str) -> Value {
    json!({"Key": format!("{RECORD}{hook}"), "ResourceId": group, "ResourceType": "auto-scaling-group"})
}

/// Returns a hook that has these properties.
fn existing(
    group: &str,
    hook: &str,
    [result, heartbeat, transition]: [&str; 3],
    recorded: bool,
) -> IdentifiedResource {
    let fields = fields([
        ("Result", result.to_owned()),
        ("Heartbeat", heartbeat.to_owned()),
        ("Transition", transition.to_owned()),
        (RECORDED, recorded.to_string()),
    ]);
    let (id, context) = (hook.to_owned(), group.to_owned());
    (format!("{group}/{hook}"), ExistingResource { id, fields, owned: true, context })
}

/// Returns the names of a group's hooks that tags record, with the tags' values.
fn records(group: &Value) -> Vec<(String, String)> {
    let hook = |(key, value): (String, String)| Some((key.strip_prefix(RECORD)?.to_owned(), value));
    tags(group.items("Tags")).into_iter().filter_map(hook).collect()
}

impl Operations for LifecycleHook {
    fn queries(scope: &Scope, answers: &Answers) -> Vec<Call> {
        let is_unrecorded = |group: &&Value| {
            let (name, records) = (group.text("AutoScalingGroupName"), records(group));
            let recorded: BTreeSet<&String> = records.iter().map(|(hook, _)| hook).collect();
            let wanted = scope.hooks.get(name);
            wanted.is_some_and(|hooks| hooks.iter().any(|hook| !recorded.contains(hook)))
        };
        let query = |group: &Value| {
            let request = json!({"AutoScalingGroupName": group.text("AutoScalingGroupName")});
            autoscaling("DescribeLifecycleHooks", request)
        };
        present(answers).filter(is_unrecorded).map(query).collect()
    }

    fn find_existing(_scope: &Scope, answers: &Answers) -> Vec<IdentifiedResource> {
        let mut all = Vec::new();
        for group in present(answers) {
            let (name, records) = (group.text("AutoScalingGroupName"), records(group));
            let answer = answers.about("DescribeLifecycleHooks", "AutoScalingGroupName", name);
            let Some(answer) = answer else {
                all.extend(records.iter().filter_map(|(hook, value)| {
                    let mut parts = value.splitn(3, ' ');
                    let parts = [parts.next()?, parts.next()?, parts.next()?];
                    Some(existing(name, hook, parts, true))
                }));
                continue;
            };
            for item in answer.items("LifecycleHooks") {
                let properties = ["DefaultResult", "HeartbeatTimeout", "LifecycleTransition"];
                let [result, heartbeat, transition] = properties.map(|member| item.text(member));
                let hook = item.text("LifecycleHookName");
                let value = record(result, heartbeat, transition);
                let recorded = records.iter().any(|one| *one == (hook.to_owned(), value.clone()));
                all.push(existing(name, hook, [result, heartbeat, transition], recorded));
            }
        }
        all
    }

    fn delete(_identity: &str, found: &ExistingResource) -> Vec<Call> {
        let (group, hook) = (&found.context, &found.id);
        let request = json!({"AutoScalingGroupName": group, "LifecycleHookName": hook});
        // Until the tag is gone, an interrupted deletion is repeated.
        let tags = json!({"Tags": [record_tag(group, hook)]});
        vec![autoscaling("DeleteLifecycleHook", request), autoscaling("DeleteTags", tags)]
    }

    fn refs(&self) -> Vec<&Ref> {
        vec![&self.group]
    }

    fn extend_scope(&self, _shared: Option<&str>, scope: &mut Scope) {
        // A scaling group's ID is its name.
        scope.hooks.entry(self.group.name.clone()).or_default().insert(self.hook.clone());
    }

    fn identity(&self, _own: &Header<'_>, ids: &Ids) -> Option<String> {
        Some(format!("{}/{}", ids.get(&self.group)?, self.hook))
    }

    fn desired_fields(&self, _own: &Header<'_>, _ids: &Ids) -> Fields {
        fields([
            ("Result", self.result.clone()),
            ("Heartbeat", self.heartbeat.to_string()),
            ("Transition", self.transition.clone()),
            (RECORDED, true.to_string()),
        ])
    }

    fn create(&self, _own: &Header<'_>, ids: &Ids) -> Result<Creation, Error> {
        Ok(Creation::new(self.put(ids), IdSource::Name).with_later([RECORDED]))
    }

    fn change(&self, update: &Update<'_>) -> Result<Vec<Call>, Error> {
        let mut calls = Vec::new();
        if update.fields.iter().any(|field| *field != RECORDED) {
            calls.push(self.put(update.ids));
        }
        let mut tag = record_tag(&id(update.ids, &self.group), &self.hook);
        tag.put("Value", record(&self.result, &self.heartbeat.to_string(), &self.transition));
        tag.put("PropagateAtLaunch", false);
        calls.push(autoscaling("CreateOrUpdateTags", json!({"Tags": [tag]})));
        Ok(calls)
    }

    fn terraform(&self, _own: &Header<'_>, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        block.value("autoscaling_group_name", writer.link(&self.group)).text("name", &self.hook);
        block.text("default_result", &self.result).int("heartbeat_timeout", self.heartbeat);
        block.text("lifecycle_transition", &self.transition);
        Ok(block)
    }
}
