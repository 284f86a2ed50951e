package conf

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type sample struct {
	Version int                  `yaml:"version,required" doc:"Format of the file."`
	Name    string               `yaml:"name" doc:"A name." default:"web"`
	Addr    netip.Addr           `yaml:"addr" doc:"An address."`
	Wait    time.Duration        `yaml:"wait" doc:"How long."`
	On      *bool                `yaml:"on" doc:"A switch."`
	Parts   []part               `yaml:"parts" doc:"Parts."`
	Farms   map[string]*part     `yaml:"farms" doc:"Farms."`
	Limits  struct{ Max uint16 } `yaml:"-"`
}

type part struct {
	Weight uint8   `yaml:"weight" doc:"Share."`
	Ratio  float64 `yaml:"ratio" doc:"Ratio."`
}

func TestDecode(t *testing.T) {
	var s sample
	f, err := Decode([]byte(`
version: 1
addr: 192.0.2.1
wait: 1m30s
on: false
parts: [{weight: 3}, &p {ratio: 0.5}]
farms: {a: *p, b: {weight: 7}}
`), &s)
	require.NoError(t, err)
	require.Equal(t, netip.MustParseAddr("192.0.2.1"), s.Addr)
	require.Equal(t, 90*time.Second, s.Wait)
	require.False(t, *s.On)
	require.Equal(t, []part{{Weight: 3}, {Ratio: 0.5}}, s.Parts)
	require.Equal(t, 0.5, s.Farms["a"].Ratio)
	f.Add("farms.b.weight", "must be even")
	f.Add("farms.b.nothing", "is missing")
	require.EqualError(t, f.Err(), "7:19: farms.b.nothing: is missing\n7:28: farms.b.weight: must be even")
}

func TestAllFaultsAtOnceWithTheirPlaces(t *testing.T) {
	var s sample
	_, err := Decode([]byte(`naem: x
addr: 192.0.2.300
wait: 5
wait: 6s
on: "yes"
parts:
- weight: 300
- weigth: 3
  ratio: much
- 7
farms: []
bogus: 1
`), &s)
	require.Error(t, err)
	for i, want := range []string{
		`1:1: version is missing; it says: Format of the file.`,
		`1:1: naem: unknown key; did you mean name?`,
		`2:7: addr: `,
		`3:7: wait: "5": want a duration such as 5s or 1m30s`,
		`4:1: wait: given before, in line 3`,
		`5:5: on: "yes": want true or false`,
		`7:11: parts[0].weight: "300": want a whole number from 0 to 255`,
		`8:3: parts[1].weigth: unknown key; did you mean weight?`,
		`9:10: parts[1].ratio: "much": want a number`,
		`10:3: parts[2]: "7": want keys and values`,
		`11:8: farms: a list: want keys and values`,
		`12:1: bogus: unknown key; known are version, name, addr, wait, on, parts, farms`,
	} {
		require.Containsf(t, err.Error(), want, "%d", i)
	}
	require.Equal(t, 12, len(strings.Split(err.Error(), "\n")), err.Error())
}

func TestRestTakesWhatIsUnknown(t *testing.T) {
	var s struct {
		A struct {
			B int `yaml:"b" doc:"B."`
		} `yaml:"a" doc:"A."`
		Others Rest
	}
	_, err := Decode([]byte("a: {b: 1}\nc: {d: 2}\ne: [3]\n"), &s)
	require.NoError(t, err)
	require.Equal(t, Rest{"c", "e"}, s.Others)
	_, err = Decode([]byte("a: {x: 1}\nc: 2\n"), &s)
	require.EqualError(t, err, "1:5: a.x: unknown key; did you mean b?", "only where there is a place for it")
}

func TestWhatIsNoYAML(t *testing.T) {
	for in, want := range map[string]string{
		"":                      "1:1: the file is empty",
		"a: [":                  "did not find",
		"version: 1\n---\n{}":   "2:1: a second document",
		"version: 1\n---\na: [": "3:1: did not find",
		"version: 1\n...\n\t%":  "3:1: found",
		"naem: 1\n--- 'x":       "2:1: found unexpected end of stream",
		"- 1":                   `a list: want keys and values`,
		"version:":              "version: nothing: want a whole number",
	} {
		_, err := Decode([]byte(in), &sample{})
		require.ErrorContains(t, err, want, in)
	}
}

func TestFaultsOfKeysAndWhatIsBelow(t *testing.T) {
	var s sample
	f, err := Decode([]byte("version: 1\nfarms:\n  a: {weight: 1}\n  ab: {weight: 300}\n"), &s)
	require.EqualError(t, err, `4:16: farms.ab.weight: "300": want a whole number from 0 to 255`)
	f.AddKey("farms.a", "is too short")
	f.AddKey("farms.a", "is too short")
	f.Add("farms.a.weight", "is too light")
	require.EqualError(t, f.Err(), "3:3: farms.a: is too short\n3:15: farms.a.weight: is too light\n"+err.Error())
	for path, want := range map[string]bool{"": true, "farms": true, "farms.a": true, "farms.a.weight": true, "farms.ab": true, "version": false, "farm": false, "farms.b": false} {
		require.Equal(t, want, f.Faulty(path), path)
	}
	require.True(t, f.Given("farms.a"))
	require.False(t, f.Given("farms.b"))
}

func TestSchemaAndReference(t *testing.T) {
	b, err := json.Marshal(Schema(sample{}, "Sample"))
	require.NoError(t, err)
	require.Contains(t, string(b), `"additionalProperties":false`)
	require.Contains(t, string(b), `"required":["version"]`)
	var text strings.Builder
	require.NoError(t, Reference(&text, sample{}))
	require.Contains(t, text.String(), "name:  # A name. Default web.\n")
	require.Contains(t, text.String(), "farms:  # Farms.\n  NAME:\n    weight:")
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte("version: 1\nparts: [{weight: 1}]\nfarms: {a: {}}\n"))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("parts: &x\n- *x"))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = Decode(b, &sample{})
	})
}
