//! Tests of Kubernetes' libraries.

use cel::{Env, Program};
use serde_json::json;

use crate::{all_fail, all_true};

#[test]
fn functions_of_all_libraries() {
    all_true(
        &[
            "'hello'.charAt(1) == 'e' && 'hello'.indexOf('l') == 2 && 'hello'.lastIndexOf('l') == 3 && 'héé'.indexOf('é', 2) == 2",
            "'a,b,c'.split(',') == ['a', 'b', 'c'] && 'a,b,c'.split(',', 2) == ['a', 'b,c'] && 'ab'.split('') == ['a', 'b']",
            "'aXbX'.replace('X', '-') == 'a-b-' && 'aXbX'.replace('X', '-', 1) == 'a-bX' && 'ab'.replace('', '_') == '_a_b_'",
            "'Abc'.lowerAscii() == 'abc' && 'Abc'.upperAscii() == 'ABC' && ' a '.trim() == 'a' && 'hello'.substring(1, 3) == 'el'",
            "['a', 'b'].join('-') == 'a-b' && strings.quote('a\"') == '\"a\\\\\"\"'",
            "'%d|%s|%.1f|%x|%b|%o|%X'.format([10, [1, 'a'], 1234.56, 255, 5, 8, 'hi']) == '10|[1, a]|1,234.6|ff|101|10|6869'",
            "'a1b22'.find('[0-9]+') == '1' && 'a1b22'.findAll('[0-9]+') == ['1', '22'] && 'a1b22'.findAll('[0-9]+', 1) == ['1']",
            "'abc'.matches('^a\\\\w+$') && !'abc'.matches('^b') && 'x'.matches(self.pattern)",
            "[1, 2, 2].isSorted() && [1, 2].sum() == 3 && [3, 1].max() == 3 && ['b', 'a'].min() == 'a' && [1, 2, 1].lastIndexOf(1) == 2",
            "[3, 1, 2].sort() == [1, 2, 3] && [3, 1].sortBy(x, -x) == [3, 1] && [1, 1].distinct() == [1] && lists.range(3) == [0, 1, 2]",
            "[1, 2, 3].slice(1, 3) == [2, 3] && [[1], [2]].flatten() == [1, 2] && [1, 2].reverse() == [2, 1] && [1].first().value() == 1",
            "sets.contains([1, 2], [2]) && sets.equivalent([1, 2], [2, 1, 1]) && sets.intersects([1], [1, 2]) && !sets.intersects([1], [3])",
            "url('https://u@h.example:8443/a%20b?x=1&x=2#f').getHost() == 'h.example:8443' && url('http://[::1]:80/').getHostname() == '::1'",
            "url('https://h:8443/a?x=1').getPort() == '8443' && url('/p').getEscapedPath() == '/p' && url('http://h?a=1&a=2').getQuery() == {'a': ['1', '2']}",
            "isURL('https://a') && !isURL('../a') && !isURL('a b') && url('HTTP://h').getScheme() == 'http'",
            "ip('10.0.0.1').family() == 4 && ip('::1').isLoopback() && ip('fe80::1').isLinkLocalUnicast() && ip('8.8.8.8').isGlobalUnicast()",
            "!isIP('::ffff:1.2.3.4') && !isIP('fe80::1%eth0') && !isIP('10.0.0.01') && ip.isCanonical('::1') && !ip.isCanonical('0::1')",
            "cidr('10.0.0.0/8').containsIP('10.1.1.1') && cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16') && !cidr('10.0.0.0/16').containsCIDR('10.0.0.0/8')",
            "cidr('10.1.2.3/8').masked() == cidr('10.0.0.0/8') && cidr('10.1.2.3/8').prefixLength() == 8 && string(cidr('::1/128').ip()) == '::1'",
            "quantity('1Gi').isGreaterThan(quantity('1G')) && quantity('100m').compareTo(quantity('0.1')) == 0 && sign(quantity('-1')) == -1",
            "quantity('2k').asInteger() == 2000 && !quantity('0.5').isInteger() && quantity('1').add(2) == quantity('3') && quantity('0.5').asApproximateFloat() == 0.5",
            "semver('1.2.3-rc.1').isLessThan(semver('1.2.3')) && semver('v1.2', true).minor() == 2 && !isSemver('01.2.3') && isSemver('01.2.3', true)",
            "format.dns1123Label().validate('Bad').value()[0].contains('RFC 1123') && !format.named('uuid').value().validate('6ba7b810-9dad-11d1-80b4-00c04fd430c8').hasValue()",
            "!format.named('none').hasValue() && format.date().validate('2024-13-01').hasValue() && !format.labelValue().validate('').hasValue()",
        ],
        &json!({"pattern": "[[:alpha:]]"}),
    );
}

#[test]
fn reports_invalid_arguments() {
    all_fail(
        &[
            (
                "ip(self)",
                "IP Address \"x\" parse error during conversion from string: ParseAddr(\"x\"): unable to parse IP",
            ),
            (
                "cidr(self)",
                "network address parse error during conversion from string: netip.ParsePrefix(\"x\"): no '/'",
            ),
            (
                "url(self)",
                "URL parse error during conversion from string: parse \"x\": invalid URI for request",
            ),
            ("semver(self)", "No Major.Minor.Patch elements found"),
            ("'abc'.charAt(4)", "index out of range: 4"),
            ("'abc'.substring(2, 1)", "invalid substring range. start: 2, end: 1"),
            ("dyn([]).min()", "min called on empty list"),
            ("[1].slice(0, 2)", "cannot slice(0, 2), list is length 1"),
            (
                "'%d'.format(['a'])",
                "error during formatting: decimal clause can only be used on integers, was given string",
            ),
            ("'%s'.format([])", "index 0 out of range"),
            ("quantity('1.5').asInteger()", "cannot convert value to integer"),
        ],
        &json!("x"),
    );
}

#[test]
fn builds_objects_and_patches_for_mutation() {
    let env = Env::default().with_mutation();
    let made = |text: &str| {
        let program = Program::compile(&env, text).map_err(|issues| issues.to_string())?;
        let outcome = program.evaluate(&[], cel::Limits::default());
        let value =
            outcome.value.and_then(|value| value.to_json()).map_err(|error| error.to_string());
        value.map(|value| (program.result().to_string(), value))
    };
    let object = "Object{spec: Object.spec{replicas: 1 + 1, ?paused: optional.none(), list: [Object.spec.list{name: 'a'}]}}";
    let wanted = json!({"spec": {"replicas": 2, "list": [{"name": "a"}]}});
    assert_eq!(made(object), Ok(("Object".to_owned(), wanted)));
    let patch = "[JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('a/b~c'), value: {'x': 1}}]";
    let wanted = json!([{"op": "add", "path": "/metadata/labels/a~1b~0c", "value": {"x": 1}}]);
    assert_eq!(made(patch), Ok(("list(JSONPatch)".to_owned(), wanted)));
    let misplaced = Program::compile(&env, "Object{status: [Object.spec{}]}").unwrap();
    let misplaced = misplaced.evaluate(&[], cel::Limits::default()).value.unwrap().misnamed();
    assert_eq!(misplaced.len(), 1);
    assert!(
        misplaced[0].contains("unexpected type name \"Object.spec\", expected \"Object.status\"")
    );
    let unknown = made("JSONPatch{operation: 'add'}");
    assert!(unknown.is_err_and(|e| e.contains("undefined field 'operation'")));
    assert!(Program::compile(&Env::default(), object).is_err());
}
