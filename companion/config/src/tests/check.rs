//! A small JSON Schema validator. It knows the keywords that the configuration's schema uses; any other keyword is an error, so
//! that no rule is skipped.

use regex::Regex;
use serde_json::Value;

/// Keywords that don't restrict values.
const ANNOTATIONS: [&str; 8] =
    ["$schema", "$defs", "title", "description", "default", "format", "writeOnly", "$comment"];

/// Checks `value`, which is found at `path`, against `schema`. `root` holds the definitions.
pub(super) fn check(value: &Value, schema: &Value, root: &Value, path: &str) -> Result<(), String> {
    let keywords = match schema {
        Value::Bool(true) => return Ok(()),
        Value::Object(keywords) => keywords,
        other => return Err(format!("{path}: {other} is not a schema")),
    };
    for (keyword, rule) in keywords {
        let fits = match keyword.as_str() {
            keyword if ANNOTATIONS.contains(&keyword) => true,
            "$ref" => {
                let name = rule.as_str().and_then(|reference| reference.strip_prefix('#'));
                let target = root.pointer(name.expect("a local reference"));
                check(value, target.expect("a definition"), root, path)?;
                true
            }
            "type" => match rule {
                Value::Array(kinds) => kinds.iter().any(|kind| has_type(value, kind)),
                kind => has_type(value, kind),
            },
            "enum" => rule.as_array().expect("a list").contains(value),
            "const" => rule == value,
            "anyOf" => count_fitting(value, rule, root, path).is_ok_and(|fitting| fitting > 0),
            "oneOf" => count_fitting(value, rule, root, path).is_ok_and(|fitting| fitting == 1),
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
                for (index, inner) in value.as_array().into_iter().flatten().enumerate() {
                    check(inner, rule, root, &format!("{path}[{index}]"))?;
                }
                true
            }
            "minItems" => value.as_array().is_none_or(|items| items.len() as u64 >= number(rule) as u64),
            "maxItems" => value.as_array().is_none_or(|items| items.len() as u64 <= number(rule) as u64),
            "minLength" => length(value).is_none_or(|chars| chars as f64 >= number(rule)),
            "maxLength" => length(value).is_none_or(|chars| chars as f64 <= number(rule)),
            "minimum" => value.as_f64().is_none_or(|value| value >= number(rule)),
            "maximum" => value.as_f64().is_none_or(|value| value <= number(rule)),
            "exclusiveMinimum" => value.as_f64().is_none_or(|value| value > number(rule)),
            "exclusiveMaximum" => value.as_f64().is_none_or(|value| value < number(rule)),
            "pattern" => {
                let pattern = Regex::new(rule.as_str().expect("a text")).expect("a pattern");
                value.as_str().is_none_or(|text| pattern.is_match(text))
            }
            other => return Err(format!("{path}: the test's validator has no keyword `{other}`")),
        };
        if !fits {
            return Err(format!("{path}: {value} doesn't fit {keyword}: {rule}"));
        }
    }
    Ok(())
}

/// The number of schemas in a list that a value fits.
fn count_fitting(value: &Value, schemas: &Value, root: &Value, path: &str) -> Result<usize, String> {
    let schemas = schemas.as_array().ok_or("a list")?;
    Ok(schemas.iter().filter(|one| check(value, one, root, path).is_ok()).count())
}

fn has_type(value: &Value, kind: &Value) -> bool {
    match kind.as_str().expect("a type's name") {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        other => panic!("unknown type {other}"),
    }
}

fn number(rule: &Value) -> f64 {
    rule.as_f64().expect("a number")
}

fn length(value: &Value) -> Option<usize> {
    value.as_str().map(|text| text.chars().count())
}
