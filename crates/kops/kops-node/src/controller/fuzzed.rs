//! Fuzzes kops-controller with damaged requests of a machine that has an identity.

use std::sync::Arc;

use api_meta::Tree as _;
use futures_util::FutureExt as _;
use http::Request;
use http_body_util::BodyExt as _;
use serde_json::Value;
use serve::{Connection, Handler as _, full};

use super::{
    PATH,
    tests::{place, request},
};

#[test]
fn bootstrap_requests() {
    const MACHINE: &str = "nodes-a-1";
    let place = place(None);
    let (head, seed) = request(&place.fleet, MACHINE, "nodes-a", MACHINE).into_parts();
    let connection = head.extensions.get::<Arc<Connection>>().cloned().unwrap();
    let seed = seed.collect().now_or_never().unwrap().unwrap().to_bytes();
    fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "bootstrap-requests", &[&seed], |input| {
        let mut request = Request::post(PATH).body(full(input.to_vec())).unwrap();
        request.extensions_mut().insert(connection.clone());
        let answer = place.controller.handle(request).now_or_never().unwrap();
        let status = answer.status().as_u16();
        assert!([200, 400, 403].contains(&status), "{status}");
        let body = answer.into_body().collect().now_or_never().unwrap().unwrap().to_bytes();
        if status != 200 {
            return;
        }
        // Whatever the request asks for, the only certificates are for the machine's own Node and for kube-proxy.
        let answer: Value = serde_json::from_slice(&body).unwrap();
        for (name, cert) in answer.at("certs").as_object().unwrap() {
            let cert = pki::Cert::from_pem(cert.as_str().unwrap()).unwrap().info().unwrap();
            let subject = cert.subject;
            let (common_name, groups) = match name.as_str() {
                "kubelet" => (format!("system:node:{MACHINE}"), 1),
                "kube-proxy" => ("system:kube-proxy".to_owned(), 0),
                other => panic!("{other}"),
            };
            assert_eq!((subject.common_name, subject.organizations.len()), (common_name, groups));
        }
    });
}
