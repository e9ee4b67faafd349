//! The queue of machine events, and the event rules that fill it.

use std::collections::BTreeSet;

use api_meta::Tree as _;
use serde_json::{Value, json};

use super::{
    family::*,
    fields::{document, fields, id, is_owned, tag_pairs, tags},
};

fn events(operation: &'static str, parameters: Value) -> Call {
    Call::new("events", operation, parameters)
}

fn sqs(operation: &'static str, parameters: Value) -> Call {
    Call::new("sqs", operation, parameters)
}

/// A queue.
#[derive(Clone, Debug)]
pub struct Queue {
    /// The retention of a message, in seconds.
    pub retention: i64,
    /// The policy document.
    pub policy: String,
}

impl Queue {
    fn attributes(&self) -> Value {
        json!({"MessageRetentionPeriod": self.retention.to_string(), "Policy": self.policy})
    }

    /// Returns the queue's ARN, which its own policy contains.
    fn arn(&self) -> String {
        let policy: Value = serde_json::from_str(&self.policy).unwrap_or_default();
        let statement = policy.items("Statement").first();
        statement.map(|statement| statement.text("Resource")).unwrap_or_default().to_owned()
    }
}

impl Operations for Queue {
    fn queries(scope: &Scope, answers: &Answers) -> Vec<Call> {
        if scope.queue.is_empty() {
            return Vec::new();
        }
        let mut all = vec![sqs("GetQueueUrl", json!({"QueueName": scope.queue}))];
        for (_, page) in answers.of("GetQueueUrl").filter(|(_, page)| page.has("QueueUrl")) {
            let url = page.text("QueueUrl");
            let names = ["MessageRetentionPeriod", "Policy", "QueueArn"];
            let request = json!({"QueueUrl": url, "AttributeNames": names});
            all.push(sqs("GetQueueAttributes", request));
            if scope.for_deletion {
                all.push(sqs("ListQueueTags", json!({"QueueUrl": url})));
            }
        }
        all
    }

    fn find_existing(scope: &Scope, answers: &Answers) -> Vec<IdentifiedResource> {
        let found = answers.of("GetQueueAttributes").map(|(parameters, page)| {
            let url = parameters.text("QueueUrl");
            let attribute = |name: &str| page.text(&["Attributes", name]).to_owned();
            let tags = answers.about("ListQueueTags", "QueueUrl", url).unwrap_or(&Value::Null);
            let tags: Tags = tags
                .pairs("Tags")
                .map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()))
                .collect();
            let found = ExistingResource {
                id: attribute("QueueArn"),
                fields: fields([
                    ("Retention", attribute("MessageRetentionPeriod")),
                    ("Policy", document(&attribute("Policy"))),
                ]),
                owned: is_owned(&tags, &scope.cluster),
                context: url.to_owned(),
            };
            (scope.queue.clone(), found)
        });
        found.collect()
    }

    fn delete(_identity: &str, found: &ExistingResource) -> Vec<Call> {
        vec![sqs("DeleteQueue", json!({"QueueUrl": found.context}))]
    }

    fn terraform_reference() -> &'static str {
        "arn"
    }

    fn has_compared_tags(&self) -> bool {
        false
    }

    fn desired_fields(&self, _own: &Header<'_>, _ids: &Ids) -> Fields {
        fields([("Retention", self.retention.to_string()), ("Policy", document(&self.policy))])
    }

    fn create(&self, own: &Header<'_>, _ids: &Ids) -> Result<Creation, Error> {
        let request =
            json!({"QueueName": own.name, "Attributes": self.attributes(), "tags": own.tags});
        Ok(Creation::new(sqs("CreateQueue", request), IdSource::Known(self.arn())))
    }

    fn change(&self, update: &Update<'_>) -> Result<Vec<Call>, Error> {
        let url = &update.found.context;
        let request = json!({"QueueUrl": url, "Attributes": self.attributes()});
        Ok(vec![sqs("SetQueueAttributes", request)])
    }

    fn terraform(&self, own: &Header<'_>, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        block.int("message_retention_seconds", self.retention);
        block.text("name", own.name).tags(own.tags);
        block.value("policy", writer.text_file(own.kind, own.name, "policy", &self.policy)?);
        Ok(block)
    }
}

/// A rule that selects events.
#[derive(Clone, Debug)]
pub struct EventRule {
    /// The pattern of events, in JSON.
    pub pattern: String,
}

/// Returns a rule in the answers with these fields.
fn existing_rule(
    scope: &Scope,
    answers: &Answers,
    rule: &Value,
    fields: Fields,
) -> IdentifiedResource {
    let (name, arn) = (rule.text("Name").to_owned(), rule.text("Arn"));
    let answer = answers.about("ListTagsForResource", "ResourceARN", arn);
    let owned = answer.is_some_and(|page| is_owned(&tags(page.items("Tags")), &scope.cluster));
    (name.clone(), ExistingResource { id: name, fields, owned, context: arn.to_owned() })
}

impl Operations for EventRule {
    fn queries(scope: &Scope, answers: &Answers) -> Vec<Call> {
        if scope.queue.is_empty() {
            return Vec::new();
        }
        let request = json!({"NamePrefix": format!("{}-", scope.rules)});
        let mut all = vec![events("ListRules", request)];
        if scope.for_deletion {
            for rule in answers.each("ListRules", "Rules") {
                let request = json!({"ResourceARN": rule.text("Arn")});
                all.push(events("ListTagsForResource", request));
            }
        }
        all
    }

    fn find_existing(scope: &Scope, answers: &Answers) -> Vec<IdentifiedResource> {
        let found = answers.each("ListRules", "Rules").map(|rule| {
            let fields = fields([("Pattern", document(rule.text("EventPattern")))]);
            existing_rule(scope, answers, rule, fields)
        });
        found.collect()
    }

    fn delete(_identity: &str, found: &ExistingResource) -> Vec<Call> {
        vec![events("DeleteRule", json!({"Name": found.id}))]
    }

    fn has_compared_tags(&self) -> bool {
        false
    }

    fn desired_fields(&self, _own: &Header<'_>, _ids: &Ids) -> Fields {
        fields([("Pattern", document(&self.pattern))])
    }

    fn create(&self, own: &Header<'_>, _ids: &Ids) -> Result<Creation, Error> {
        let request =
            json!({"Name": own.name, "EventPattern": self.pattern, "Tags": tag_pairs(own.tags)});
        Ok(Creation::new(events("PutRule", request), IdSource::Name))
    }

    // Putting a rule again replaces it. AWS applies tags only to new rules.
    fn change(&self, update: &Update<'_>) -> Result<Vec<Call>, Error> {
        let request = json!({"Name": update.id(), "EventPattern": self.pattern});
        Ok(vec![events("PutRule", request)])
    }

    fn terraform(&self, own: &Header<'_>, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        let pattern = writer.text_file(own.kind, own.name, "event_pattern", &self.pattern)?;
        block.value("event_pattern", pattern).text("name", own.name).tags(own.tags);
        Ok(block)
    }
}

/// The queue that receives the events of a rule.
#[derive(Clone, Debug)]
pub struct EventTarget {
    /// The rule.
    pub rule: Ref,
    /// The queue.
    pub queue: Ref,
}

impl Operations for EventTarget {
    fn queries(_scope: &Scope, answers: &Answers) -> Vec<Call> {
        let query = |(_, page): (&Value, &Value)| {
            let request = json!({"TargetArn": page.text("Attributes.QueueArn")});
            events("ListRuleNamesByTarget", request)
        };
        answers.of("GetQueueAttributes").map(query).collect()
    }

    fn find_existing(scope: &Scope, answers: &Answers) -> Vec<IdentifiedResource> {
        let pages = answers.of("ListRuleNamesByTarget");
        let targeted: BTreeSet<&str> =
            pages.flat_map(|(_, page)| page.texts("RuleNames")).collect();
        let rules = answers.each("ListRules", "Rules");
        let rules = rules.filter(|rule| targeted.contains(rule.text("Name")));
        rules.map(|rule| existing_rule(scope, answers, rule, Fields::new())).collect()
    }

    fn delete(_identity: &str, found: &ExistingResource) -> Vec<Call> {
        vec![events("RemoveTargets", json!({"Rule": found.id, "Ids": ["1"]}))]
    }

    fn refs(&self) -> Vec<&Ref> {
        vec![&self.rule, &self.queue]
    }

    fn identity(&self, _own: &Header<'_>, _ids: &Ids) -> Option<String> {
        Some(self.rule.name.clone())
    }

    fn create(&self, _own: &Header<'_>, ids: &Ids) -> Result<Creation, Error> {
        let targets = json!([{"Id": "1", "Arn": id(ids, &self.queue)}]);
        let request = json!({"Rule": self.rule.name, "Targets": targets});
        Ok(Creation::new(events("PutTargets", request), IdSource::Name))
    }

    fn terraform(&self, _own: &Header<'_>, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        block.value("arn", writer.link(&self.queue)).value("rule", writer.link(&self.rule));
        Ok(block)
    }
}
