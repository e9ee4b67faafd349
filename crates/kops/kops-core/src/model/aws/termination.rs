//! The queue and event rules from which the node termination handler learns that a machine will end.

use api_meta::Tree as _;
use serde_json::json;

use super::{
    context::Context,
    graph::Model,
    names,
    policy::{Statement, document},
};
use crate::{
    aws::{EventRule, EventTarget, Kind, LifecycleHook, Queue, Ref, Tags},
    error::Error,
    names::{queue_name, rule_prefix},
};

/// The retention of a message, and the time that a machine's end waits for the handler, in seconds.
const WAIT: i64 = 300;

/// The events by name. Each pattern is upstream's, including spaces.
const EVENTS: [(&str, &str); 5] = [
    (
        "ASGLifecycle",
        r#"{"source":["aws.autoscaling"],"detail-type":["EC2 Instance-terminate Lifecycle Action"]}"#,
    ),
    (
        "SpotInterruption",
        r#"{"source": ["aws.ec2"],"detail-type": ["EC2 Spot Instance Interruption Warning"]}"#,
    ),
    (
        "InstanceStateChange",
        r#"{"source": ["aws.ec2"],"detail-type": ["EC2 Instance State-change Notification"]}"#,
    ),
    (
        "InstanceScheduledChange",
        r#"{"source": ["aws.health"],"detail-type": ["AWS Health Event"],"detail": {"service": ["EC2"],"eventTypeCategory": ["scheduledChange"]}}"#,
    ),
    (
        REBALANCE,
        r#"{"source": ["aws.ec2"],"detail-type": ["EC2 Instance Rebalance Recommendation"]}"#,
    ),
];
const REBALANCE: &str = "RebalanceRecommendation";

pub(super) fn add(context: &Context<'_>, model: &mut Model) -> Result<(), Error> {
    if !context.has_termination_queue() {
        return Ok(());
    }
    for group in context.groups.iter().filter(|one| one.spec.text("manager") == "CloudGroup") {
        let name = format!("{}-NTHLifecycleHook", group.name());
        let body = LifecycleHook {
            group: Ref::new(Kind::ScalingGroup, names::scaling_group(context.name, group)),
            hook: name.clone(),
            result: "CONTINUE".to_owned(),
            heartbeat: WAIT,
            transition: "autoscaling:EC2_INSTANCE_TERMINATING".to_owned(),
        };
        model.add(name, Tags::new(), body);
    }
    let queue = add_queue(context, model)?;
    let handler = "cloudProvider.aws.nodeTerminationHandler.enableRebalanceDraining";
    let prefix = rule_prefix(context.name);
    for (event, pattern) in EVENTS {
        if event == REBALANCE && !context.spec.flag(handler) {
            continue;
        }
        let name = format!("{prefix}-{event}");
        let body = EventRule { pattern: pattern.to_owned() };
        let rule = model.add(name.clone(), context.tags(&name, false), body);
        let body = EventTarget { rule, queue: queue.clone() };
        model.add(format!("{name}-Target"), Tags::new(), body);
    }
    Ok(())
}

fn add_queue(context: &Context<'_>, model: &mut Model) -> Result<Ref, Error> {
    let name = queue_name(context.name);
    let (partition, region) = (&context.partition, &context.region);
    let account = context.account("the policy of the termination queue needs it")?;
    let mut statement = Statement::allow(
        &["sqs:SendMessage"],
        &[format!("arn:{partition}:sqs:{region}:{account}:{name}")],
    );
    statement.principal = json!({"Service": ["events.amazonaws.com", "sqs.amazonaws.com"]});
    let body = Queue { retention: WAIT, policy: document(&[statement]) };
    Ok(model.add(name.clone(), context.tags(&name, false), body))
}
