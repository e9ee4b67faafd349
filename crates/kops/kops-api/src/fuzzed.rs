//! Fuzzes the parser with damaged specs.

use crate::object::{Object, VersionName};

#[test]
fn objects() {
    let cluster = b"apiVersion: kops.k8s.io/v1alpha2\nkind: Cluster\nmetadata:\n  name: a.example.com\nspec:\n  cloudProvider: aws\n  cloudConfig: {elbSecurityGroup: sg, azure: {}}\n  etcdClusters:\n  - name: main\n    cpuRequest: 200m\n    etcdMembers: [{name: a, instanceGroup: m}]\n  kubeAPIServer: {oidcGroupsClaim: 'a,b', oidcRequiredClaim: [a=b], auditLogMaxAge: 5}\n  topology: {dns: {type: None}}\n  subnets: [{name: a, zone: a, cidr: 10.0.0.0/8}]\n  externalDns: {disable: true}\n  DisableSubnetTags: true\n";
    let group = b"apiVersion: kops.k8s.io/v1alpha3\nkind: InstanceGroup\nmetadata: {name: nodes}\nspec: {role: ControlPlane, rootVolume: {size: 5}, maxSize: 3, hooks: [{name: a, enabled: true, roles: [Node]}]}\n";
    let seeds: [&[u8]; 2] = [cluster, group];
    fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "objects", &seeds, |input| {
        let Ok(object) = Object::read("input", input) else { return };
        // A parsed object can be written in both versions, and parses to the same object again.
        for version in [VersionName::V1alpha2, VersionName::V1alpha3] {
            let written = object.to_yaml(version);
            let again = Object::read("written", written.as_bytes());
            let again = again.unwrap_or_else(|e| panic!("{e}\n{written}"));
            assert_eq!(again.to_yaml(version), written);
        }
    });
}
