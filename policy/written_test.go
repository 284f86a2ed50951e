package policy

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// TestWrittenRules writes random rules as JSON and YAML and reads them back, and then the table that they make.
func TestWrittenRules(t *testing.T) {
	u := universe{rand.New(rand.NewPCG(7, 8)), 20, 20}
	for range 300 {
		rules := u.rules(1 + u.IntN(8))

		text, err := json.Marshal(rules)
		require.NoError(t, err)
		var back []Rule[int]
		require.NoError(t, json.Unmarshal(text, &back))
		require.Equal(t, rules, back, "%s", text)

		text, err = yaml.Marshal(rules)
		require.NoError(t, err)
		back = nil
		d := yaml.NewDecoder(strings.NewReader(string(text)))
		d.KnownFields(true)
		require.NoError(t, d.Decode(&back))
		require.Equal(t, rules, back, "%s", text)

		table, err := Compile(nil, u.rules(8)...)
		require.NoError(t, err)
		var listed []Rule[int]
		for r := range table.All() {
			listed = append(listed, *r)
		}
		text, err = yaml.Marshal(listed)
		require.NoError(t, err)
		back = nil
		require.NoError(t, yaml.Unmarshal(text, &back))
		require.Equal(t, listed, back, "%s", text)
	}
}

// TestHandWrittenRules reads what a person would write.
func TestHandWrittenRules(t *testing.T) {
	const text = `
- name: web
  match: 10.0.0.1 tcp/80
  value: 1
- {name: web-lan, match: "10.0.0.1 tcp/80 from 192.0.2.0/24", value: 2}
- {name: rest6, match: "2001:db8::/64", value: 3, disabled: true}
`
	var rules []Rule[int]
	require.NoError(t, yaml.Unmarshal([]byte(text), &rules))
	table, err := Compile(nil, rules...)
	require.NoError(t, err)
	v, ok := table.Lookup(packet(t, "tcp 192.0.2.9:1 > 10.0.0.1:80"))
	require.True(t, ok)
	require.Equal(t, 2, v)

	err = yaml.Unmarshal([]byte(`[{name: x, match: 10.0.0.1 tpc/80, value: 1}]`), &rules)
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, `tpc`)
	var rule Rule[int]
	err = json.Unmarshal([]byte(`{"name": "x", "match": "10.0.0.1/99", "value": 1}`), &rule)
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, `10.0.0.1/99`)
}
