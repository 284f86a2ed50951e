package main

import (
	"encoding"
	"net/http"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// openAPI describes the JSON API (OpenAPI 3.1), from the table of routes and the types themselves.
func openAPI() map[string]any {
	schemas, paths := map[string]any{}, map[string]any{}
	problem := content(jsonSchema(reflect.TypeFor[errorReply](), schemas))
	for _, rt := range routes() {
		done := map[string]any{"application/x-pcapng": map[string]any{}}
		switch rt.reply.(type) {
		case nil:
		case tracedReply: // one a line
			done = map[string]any{"application/x-ndjson": map[string]any{"schema": jsonSchema(reflect.TypeOf(rt.reply), schemas)}}
		default:
			done = content(jsonSchema(reflect.TypeOf(rt.reply), schemas))
		}
		op := map[string]any{
			"summary":     rt.summary,
			"responses":   responses(rt.method, done, problem, rt.refused),
			"operationId": strings.ToLower(rt.method) + strings.Map(letters, rt.path),
		}
		var params []any
		for _, p := range rt.query {
			params = append(params, map[string]any{"name": p.name, "in": "query", "description": p.doc, "schema": map[string]any{"type": "string"}})
		}
		for _, m := range regexp.MustCompile(`\{(\w+)\}`).FindAllStringSubmatch(rt.path, -1) {
			params = append(params, map[string]any{"name": m[1], "in": "path", "required": true, "schema": map[string]any{"type": "string"}})
		}
		if params != nil {
			op["parameters"] = params
		}
		if rt.body != nil {
			op["requestBody"] = map[string]any{"required": true, "content": content(jsonSchema(reflect.TypeOf(rt.body), schemas))}
		}
		at, _ := paths[rt.path].(map[string]any)
		if at == nil {
			at = map[string]any{}
			paths[rt.path] = at
		}
		at[strings.ToLower(rt.method)] = op
	}
	ok := content(jsonSchema(reflect.TypeFor[okReply](), schemas))
	text := map[string]any{"schema": map[string]any{"type": "string"}}
	for _, x := range []struct {
		path, summary string
		done          map[string]any
	}{
		{"/healthz", "Whether the program runs", ok}, {"/readyz", "Whether it can serve", ok},
		{"/metrics", "Metrics for Prometheus", map[string]any{"text/plain": text}},
		{"/openapi.json", "This description", content(map[string]any{"type": "object"})},
	} {
		answers := responses("GET", x.done, problem, nil)
		if x.path == "/readyz" {
			answers["503"] = map[string]any{"description": "No; text says why.", "content": ok}
		}
		paths[x.path] = map[string]any{"get": map[string]any{"summary": x.summary, "operationId": "get" + strings.Map(letters, x.path), "responses": answers}}
	}
	return map[string]any{
		"openapi": "3.1.0",
		"info": map[string]any{
			"title": "l4lb admin interface", "version": "1",
			"description": "Over the Unix socket the socket's permissions decide who may call; over TCP the interface needs TLS and the header Authorization: Bearer TOKEN. Requests that change something need the header Content-Type: application/json. Pages of other sites are refused.",
		},
		"security":   []any{map[string]any{}, map[string]any{"token": []string{}}},
		"paths":      paths,
		"components": map[string]any{"schemas": schemas, "securitySchemes": map[string]any{"token": map[string]any{"type": "http", "scheme": "bearer"}}},
	}
}

// responses are the answers of an operation: those of the guard among them.
func responses(method string, done, problem map[string]any, refused []int) map[string]any {
	all := map[string]any{"200": map[string]any{"description": "Done.", "content": done}}
	refused = append([]int{http.StatusUnauthorized, http.StatusForbidden}, refused...)
	if method != http.MethodGet {
		refused = append(refused, http.StatusUnsupportedMediaType)
	}
	for _, code := range refused {
		all[strconv.Itoa(code)] = map[string]any{"description": map[int]string{
			http.StatusBadRequest:           "The query or the body is wrong.",
			http.StatusUnauthorized:         "Over TCP: the token is missing or wrong.",
			http.StatusForbidden:            "The request comes from a page of another site, or is for another host.",
			http.StatusNotFound:             "There is no such node.",
			http.StatusConflict:             "The file is refused; the old configuration stays in force.",
			http.StatusUnsupportedMediaType: "The header Content-Type: application/json is missing.",
		}[code], "content": problem}
	}
	return all
}

func letters(r rune) rune {
	if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
		return r
	}
	return -1
}

func content(schema map[string]any) map[string]any {
	return map[string]any{"application/json": map[string]any{"schema": schema}}
}

// jsonSchema returns the schema of t. Structs go to schemas under their names.
func jsonSchema(t reflect.Type, schemas map[string]any) map[string]any {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t == reflect.TypeFor[time.Time]():
		return map[string]any{"type": "string", "format": "date-time"}
	case t.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		return enumSchema(t)
	case t.Kind() == reflect.Struct:
		name := strings.TrimSuffix(strings.TrimSuffix(t.Name(), "Reply"), "Request")
		ref := map[string]any{"$ref": "#/components/schemas/" + name}
		if schemas[name] != nil {
			return ref
		}
		props, required := map[string]any{}, []string{}
		schemas[name] = map[string]any{"type": "object", "properties": props, "required": &required, "additionalProperties": false}
		for _, f := range reflect.VisibleFields(t) {
			if f.Anonymous {
				continue
			}
			key, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
			s := jsonSchema(f.Type, schemas)
			s["description"] = f.Tag.Get("doc")
			if words := f.Tag.Get("enum"); words != "" {
				s["enum"] = strings.Fields(words)
			}
			props[key] = s
			if opts == "" {
				required = append(required, key)
			}
		}
		return ref
	case t.Kind() == reflect.Slice:
		return map[string]any{"type": []string{"array", "null"}, "items": jsonSchema(t.Elem(), schemas)}
	case t.Kind() == reflect.Bool:
		return map[string]any{"type": "boolean"}
	case t.Kind() == reflect.String:
		return map[string]any{"type": "string"}
	case t.Kind() >= reflect.Int && t.Kind() <= reflect.Uint64:
		return map[string]any{"type": "integer"}
	}
	return map[string]any{"type": "number"}
}

// enumSchema lists the texts of a small enumeration.
func enumSchema(t reflect.Type) map[string]any {
	var names []string
	for i := range 100 {
		v := reflect.New(t).Elem()
		if v.Kind() != reflect.Uint8 {
			break
		}
		v.SetUint(uint64(i))
		b, err := v.Interface().(encoding.TextMarshaler).MarshalText()
		if err != nil {
			break
		}
		names = append(names, string(b))
	}
	if names == nil {
		return map[string]any{"type": "string"}
	}
	return map[string]any{"type": "string", "enum": names}
}
