package main

import (
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/examples/internal/conf"
	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/sslpersist"
)

// fileSchema compiles the schema that the program prints.
func fileSchema(t *testing.T) (*jsonschema.Schema, map[string]any) {
	t.Helper()
	status, out, errs := invoke(t, "schema")
	require.Zero(t, status, errs)
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(out))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	require.NoError(t, c.AddResource("file.json", doc))
	s, err := c.Compile("file.json")
	require.NoError(t, err, "the schema itself keeps to its draft")
	return s, doc.(map[string]any)
}

// asJSON is a YAML file as a validator wants it.
func asJSON(t *testing.T, text string) any {
	t.Helper()
	var v any
	require.NoError(t, yaml.Unmarshal([]byte(text), &v), text)
	b, err := json.Marshal(v)
	require.NoError(t, err, text)
	v, err = jsonschema.UnmarshalJSON(strings.NewReader(string(b)))
	require.NoError(t, err)
	return v
}

// rightFiles are all files of this program in the repository: examples, and those of guides and READMEs.
func rightFiles(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{"goodFile": goodFile, "reloadFile": reloadFile, "otherFile": otherFile}
	for _, name := range exampleNames() {
		text, err := exampleFile(name)
		require.NoError(t, err)
		files[name] = text
	}
	guides, err := filepath.Glob("../guides/*.md")
	require.NoError(t, err)
	for _, name := range append(guides, "README.md", "../../README.md") {
		b, err := os.ReadFile(name) //nolint:gosec // of the repository
		require.NoError(t, err)
		for i, m := range regexp.MustCompile("(?ms)^```yaml[^\n]*\n(.*?)^```$").FindAllStringSubmatch(string(b), -1) {
			if strings.Contains(m[1], "\nservices:") {
				files[fmt.Sprintf("%s, block %d", name, i)] = m[1]
			}
		}
	}
	return files
}

// What the schema takes and what check takes is the same, as far as a schema can know.
func TestSchema(t *testing.T) {
	schema, _ := fileSchema(t)
	files := rightFiles(t)
	require.GreaterOrEqual(t, len(files), 10)
	for name, text := range files {
		_, err := conf.Decode([]byte(text), &config{}) // some guides complete a file step by step; their own test checks it
		require.NoError(t, err, name)
		require.NoError(t, schema.Validate(asJSON(t, text)), name)
	}
	// Values that may be written in several ways.
	for _, c := range []string{
		"password: 1234", "password: true", "interval: 0", "interval: 1m30.5s", "interval: .5s", "status: [200, 300-399]", "path: 7",
	} {
		text := strings.Replace(goodFile, "nodes:", "check: {method: redis, "+c+"}\n    nodes:", 1)
		var s config
		_, err := conf.Decode([]byte(text), &s)
		require.NoError(t, err, c)
		require.NoError(t, schema.Validate(asJSON(t, text)), c)
	}
	// Faults of shape, which the rest of the fault's text tells from those of meaning.
	shape := regexp.MustCompile(`unknown key|is missing; it says|want keys and values|want a (list|text|value)$|want a (whole )?number|want true or false|want a duration|want (one of [\w-]+, [\w-]+|tun or|ipfix or)`)
	rejected := 0
	for _, c := range wrongFiles() {
		bad := c.text()
		err := schema.Validate(asJSON(t, bad))
		switch faults := strings.Join(c.want, "\n"); {
		case shape.MatchString(faults) && !regexp.MustCompile(`farm: "\w+": want one of`).MatchString(faults):
			require.Error(t, err, faults)
			rejected++
		default:
			require.NoError(t, err, "the schema refuses what is a fault of meaning only: %s", faults)
		}
	}
	require.Greater(t, rejected, 25)
}

// walk calls do for every key of a schema, with its path.
func walk(s map[string]any, path string, do func(path string, key map[string]any)) {
	if items, ok := s["items"].(map[string]any); ok {
		walk(items, path+"[]", do)
	}
	if more, ok := s["additionalProperties"].(map[string]any); ok {
		walk(more, path+".NAME", do)
	}
	props, _ := s["properties"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(props)) {
		key := props[name].(map[string]any)
		at := strings.TrimPrefix(path+"."+name, ".")
		do(at, key)
		walk(key, at, do)
	}
}

// Every key is described, in the schema and in the reference, by the text that stands beside its field; and every value of an enumeration is read.
func TestEveryKeyIsDocumented(t *testing.T) {
	_, doc := fileSchema(t)
	_, reference, _ := invoke(t, "reference")
	reference = strings.ReplaceAll("\n"+reference, "\n", "\n ")
	keys := 0
	walk(doc, "", func(path string, key map[string]any) {
		keys++
		text, _ := key["description"].(string)
		require.Regexp(t, `^\S.{3,}\.$`, text, path)
		name := path[strings.LastIndex(path, ".")+1:]
		first, _, _ := strings.Cut(text, " Default ")
		require.Contains(t, reference, " "+name+":  # "+first, path)
		names, _ := key["enum"].([]any)
		for _, v := range names {
			require.Contains(t, reference, fmt.Sprint(v), path)
		}
	})
	require.Equal(t, keys, strings.Count(reference, ":  # "), "no more and no less than the schema has")
	require.Greater(t, keys, 100)
}

// What is said to be the default is what the library does by default.
func TestDefaultsAreTrue(t *testing.T) {
	_, doc := fileSchema(t)
	said := map[string]string{}
	walk(doc, "", func(path string, key map[string]any) {
		if _, def, ok := strings.Cut(key["description"].(string), " Default "); ok {
			said[path] = strings.TrimSuffix(def, ".")
		}
	})
	for path, want := range map[string]any{
		"sessions": dataplane.DefaultMaxSessions, "associations": dataplane.DefaultMaxAssociations,
		"foreign": dataplane.Foreign(0), "device.type": deviceType(0), "device.name": device{}.name(), "state.every": state{}.interval(), "admin.socket": admin{}.socket(),
		"farms.NAME.check.interval": healthcheck.DefaultInterval, "farms.NAME.check.rise": healthcheck.DefaultRise, "farms.NAME.check.fall": healthcheck.DefaultFall,
		"elements.NAME.interval": healthcheck.DefaultInterval, "farms.NAME.agent.interval": healthcheck.DefaultInterval,
		"farms.NAME.metric": farm{}.Metric, "farms.NAME.mode": farm{}.Mode, "farms.NAME.forward": farm{}.Forward,
		"farms.NAME.backup-when": farm{}.Backup, "farms.NAME.tunnel.kind": tunnel{}.Kind, "farms.NAME.nodes[].admin": node{}.Admin,
		"farms.NAME.ageing.idle": clienttable.DefaultTTL, "farms.NAME.ageing.syn": clienttable.DefaultSYN, "farms.NAME.ageing.linger": clienttable.DefaultLinger,
		"services[].lost-session": service{}.Lost, "services[].protocol": service{}.Protocol, "services[].port": service{}.Port, "services[].clients": service{}.Clients,
		"services[].delay.read": delay{}.Read, "services[].delay.tls-persistence.idle": sslpersist.DefaultTTL, "services[].delay.tls-persistence.sessions": sslpersist.DefaultMaxEntries,
		"services[].delay.rules[].in": delayRule{}.In, "flow-export.version": flows{}.Version,
	} {
		got := said[path]
		if d, ok := want.(time.Duration); ok {
			x, err := time.ParseDuration(got)
			require.NoError(t, err, path)
			require.Equal(t, d, x, path)
			continue
		}
		if m, ok := want.(encoding.TextMarshaler); ok {
			b, err := m.MarshalText()
			require.NoError(t, err)
			want = string(b)
		}
		require.Equal(t, fmt.Sprint(want), got, path)
	}
	// Written out, a default changes nothing.
	var c config
	_, err := conf.Decode([]byte(`version: 1
device: {type: tun, name: lb0, mtu: 1500, queues: 1}
sessions: 262144
associations: 262144
foreign: pass
ping-nodes: 1
state: {every: 30s}
admin: {socket: /run/l4lb/admin.sock}
farms: {}
services: []
`), &c)
	require.NoError(t, err)
	require.Empty(t, fixedChanges(&config{}, &c))
	c.Device.Queues, c.Sessions, c.State.Every = 2, 1000, time.Minute
	require.Equal(t, []string{"device.queues"}, fixedChanges(&config{}, &c))
}
