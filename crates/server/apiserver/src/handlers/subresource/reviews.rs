//! Reviews: requests that are answered but not stored.

use api_meta::{GroupResource, Status, Tree as _};
use auth::{
    authn::review,
    authz::review::{Question, Subject, rules_review},
};
use http::StatusCode;
use serde_json::{Value, json};

use crate::{
    handlers::{
        admission,
        attributes::Attributes,
        body::read_body,
        call::{Answer, Call},
        decode, meta,
        state::State,
    },
    request::ResponseFormat,
    response,
    watch_cache::store_status,
};

/// The kinds of objects that decide whether a service account token is valid.
const TOKEN_OBJECTS: [GroupResource; 4] = [
    GroupResource::SERVICE_ACCOUNTS,
    GroupResource::SECRETS,
    GroupResource::PODS,
    GroupResource::NODES,
];

pub(super) async fn create(state: &State, call: &Call) -> Answer {
    let (headers, query) = (&call.headers, &call.info.query);
    let accepted = ResponseFormat::negotiate_without_tables(headers, query, call.encodings)?;
    let mut review = decode::decode_object(call, read_body(state, call).await?)?;
    if call.resource.definition.namespaced {
        meta::check_namespace(&call.resource.definition, &mut review, &call.path.namespace)?;
    }
    let attributes = Attributes::create(call);
    admission::admit(state, &attributes, &mut review).await?;
    admission::validate(state, &attributes, &review).await?;
    let security = &state.security;
    let access = async |review: &mut Value, subject: Subject<'_>| {
        let question = Question::of(review, subject).map_err(Box::new)?;
        let decision = security.decide(&question.attributes()).await;
        question.answer(review, &decision);
        Ok::<_, Box<Status>>(())
    };
    match &*call.resource.definition.plural {
        "tokenreviews" => {
            if review.text("spec.token").is_empty() {
                return Err(Box::new(Status::bad_request(
                    "token is required for TokenReview in authentication",
                )));
            }
            // The service account of a token that was just issued must be in the cache, and the object that the token
            // is bound to.
            let fresh = state.cache.consistent(&TOKEN_OBJECTS).await;
            fresh.map_err(store_status)?;
            let token_request = review::TokenReviewRequest::of(&review, &security.authentication);
            let authenticated =
                security.by_token(&token_request.token, &token_request.audiences).await;
            review::answer(&mut review, &token_request, authenticated);
        }
        "selfsubjectreviews" => review.put(&["status"], json!({"userInfo": *call.user})),
        "subjectaccessreviews" => access(&mut review, Subject::Named).await?,
        "localsubjectaccessreviews" => {
            access(&mut review, Subject::NamedIn(&call.path.namespace)).await?;
        }
        "selfsubjectaccessreviews" => access(&mut review, Subject::Caller(&call.user)).await?,
        _ => {
            let (has_rbac, gaps) = security.authorizers.rules_review_scope();
            let rbac = has_rbac.then_some(&*security.rbac);
            rules_review(&mut review, &call.user, rbac, gaps).map_err(Box::new)?;
        }
    }
    Ok(response::value(accepted, StatusCode::CREATED, &review))
}
