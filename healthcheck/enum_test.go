package healthcheck

import (
	"encoding"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

type value interface {
	fmt.Stringer
	encoding.TextMarshaler
}

func testEnum[E interface {
	~uint8
	value
}](t *testing.T, n int, unmarshal func(*E, []byte) error) {
	seen := map[string]bool{}
	for i := range n {
		e := E(i)
		b, err := e.MarshalText()
		require.NoError(t, err)
		require.Equal(t, e.String(), string(b))
		require.False(t, seen[e.String()])
		seen[e.String()] = true
		back := E(255)
		require.NoError(t, unmarshal(&back, b))
		require.Equal(t, e, back)
	}
	bad := E(n)
	_, err := bad.MarshalText()
	require.Error(t, err)
	require.Contains(t, bad.String(), fmt.Sprint(n))
	e := E(1)
	require.ErrorContains(t, unmarshal(&e, []byte("nonsense")), `"nonsense": want one of `)
	require.Equal(t, E(1), e)
}

func TestEnums(t *testing.T) {
	t.Parallel()
	testEnum(t, 4, (*Verdict).UnmarshalText)
	testEnum(t, numStates, (*State).UnmarshalText)
	testEnum(t, numEvents, (*Event).UnmarshalText)
	testEnum(t, 3, (*Truth).UnmarshalText)
	testEnum(t, numMethods, (*Method).UnmarshalText)
	testEnum(t, 3, (*Transport).UnmarshalText)
	testEnum(t, 3, (*Layer).UnmarshalText)
	testEnum(t, 4, (*SlowStartMode).UnmarshalText)
	testEnum(t, 4, (*AgentAdmin).UnmarshalText)
	testEnum(t, 3, (*Admin).UnmarshalText)
}

func TestZeroValuesAreSafe(t *testing.T) {
	t.Parallel()
	var r Result
	require.False(t, r.Verdict.OK())
	require.NotEqual(t, Fail, r.Verdict)
	require.False(t, State(0).Usable())
	require.Equal(t, IsUnknown, State(0).Truth())
	require.Equal(t, Unknown, Enabled)
	require.Equal(t, Up, Active)
	require.Equal(t, Down, Failed)
}

func TestTruthTables(t *testing.T) {
	t.Parallel()
	u, y, n := IsUnknown, IsUp, IsDown
	for _, c := range [][4]Truth{ // a, b, and, or
		{y, y, y, y}, {y, n, n, y}, {y, u, u, y}, {n, y, n, y}, {n, n, n, n}, {n, u, n, u}, {u, y, u, y}, {u, n, n, u}, {u, u, u, u},
	} {
		require.Equal(t, c[2], c[0].And(c[1]), c)
		require.Equal(t, c[3], c[0].Or(c[1]), c)
	}
	require.Equal(t, []Truth{u, n, y}, []Truth{u.Not(), y.Not(), n.Not()})
}
