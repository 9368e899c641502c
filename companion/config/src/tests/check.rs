//! A document held against the schema as a validator would, as far as the schema goes: a word of the schema that isn't
//! known here is an error, so that nothing is passed over.

use regex::Regex;
use serde_json::Value;

/// Words that say something about a value to people only.
const ANNOTATIONS: [&str; 8] = [
    "$schema",
    "$defs",
    "title",
    "description",
    "default",
    "format",
    "writeOnly",
    "$comment",
];

/// Why `value` isn't what `schema` allows, with its path; `root` holds the definitions.
pub(super) fn check(value: &Value, schema: &Value, root: &Value, path: &str) -> Result<(), String> {
    let words = match schema {
        Value::Bool(true) => return Ok(()),
        Value::Object(words) => words,
        other => return Err(format!("{path}: {other} allows nothing")),
    };
    for (word, rule) in words {
        let fits = match word.as_str() {
            word if ANNOTATIONS.contains(&word) => true,
            "$ref" => {
                let name = rule.as_str().and_then(|it| it.strip_prefix("#"));
                let target = root.pointer(name.expect("a local reference"));
                check(value, target.expect("a definition"), root, path)?;
                true
            }
            "type" => match rule {
                Value::Array(kinds) => kinds.iter().any(|kind| is(value, kind)),
                kind => is(value, kind),
            },
            "enum" => rule.as_array().expect("a list").contains(value),
            "const" => rule == value,
            "anyOf" => of(value, rule, root, path).is_ok_and(|fitting| fitting > 0),
            "oneOf" => of(value, rule, root, path).is_ok_and(|fitting| fitting == 1),
            "properties" => {
                for (key, inner) in value.as_object().into_iter().flatten() {
                    if let Some(rule) = rule.get(key) {
                        check(inner, rule, root, &format!("{path}.{key}"))?;
                    }
                }
                true
            }
            "additionalProperties" => {
                for (key, inner) in value.as_object().into_iter().flatten() {
                    if schema["properties"].get(key).is_none() {
                        check(inner, rule, root, &format!("{path}.{key}"))?;
                    }
                }
                true
            }
            "required" => value.as_object().is_none_or(|map| {
                let keys = rule.as_array().expect("a list").iter();
                keys.filter_map(Value::as_str).all(|key| map.contains_key(key))
            }),
            "items" => {
                for (at, inner) in value.as_array().into_iter().flatten().enumerate() {
                    check(inner, rule, root, &format!("{path}[{at}]"))?;
                }
                true
            }
            "minItems" => value
                .as_array()
                .is_none_or(|it| it.len() as u64 >= number(rule) as u64),
            "minLength" => text(value).is_none_or(|it| it as f64 >= number(rule)),
            "maxLength" => text(value).is_none_or(|it| it as f64 <= number(rule)),
            "minimum" => value.as_f64().is_none_or(|it| it >= number(rule)),
            "maximum" => value.as_f64().is_none_or(|it| it <= number(rule)),
            "exclusiveMinimum" => value.as_f64().is_none_or(|it| it > number(rule)),
            "exclusiveMaximum" => value.as_f64().is_none_or(|it| it < number(rule)),
            "pattern" => {
                let pattern = Regex::new(rule.as_str().expect("a text")).expect("a pattern");
                value.as_str().is_none_or(|it| pattern.is_match(it))
            }
            other => return Err(format!("{path}: `{other}` isn't known to this test")),
        };
        if !fits {
            return Err(format!("{path}: {value} isn't {word}: {rule}"));
        }
    }
    Ok(())
}

/// How many of some schemas a value fits.
fn of(value: &Value, several: &Value, root: &Value, path: &str) -> Result<usize, String> {
    let several = several.as_array().ok_or("a list")?;
    Ok(several
        .iter()
        .filter(|one| check(value, one, root, path).is_ok())
        .count())
}

fn is(value: &Value, kind: &Value) -> bool {
    match kind.as_str().expect("a type's name") {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|it| it.fract() == 0.0),
        other => panic!("no type is called {other}"),
    }
}

fn number(rule: &Value) -> f64 {
    rule.as_f64().expect("a number")
}

fn text(value: &Value) -> Option<usize> {
    value.as_str().map(|it| it.chars().count())
}
