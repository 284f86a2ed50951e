package conf

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestValues(t *testing.T) {
	var p Prefix
	for _, c := range []struct{ text, want string }{{"192.0.2.80", "192.0.2.80/32"}, {"2001:db8::80", "2001:db8::80/128"}, {"192.0.2.9/24", "192.0.2.0/24"}} {
		require.NoError(t, p.UnmarshalText([]byte(c.text)))
		require.Equal(t, c.want, p.String())
	}
	var e Endpoint
	for _, text := range []string{"10.0.0.1:80", "[2001:db8::1]:80", "10.0.0.1", "2001:db8::1"} {
		require.NoError(t, e.UnmarshalText([]byte(text)))
		back, err := e.MarshalText()
		require.NoError(t, err)
		require.Equal(t, text, string(back))
	}
	var m MAC
	require.NoError(t, m.UnmarshalText([]byte("02:00:00:00:00:0a")))
	require.Equal(t, MAC{2, 0, 0, 0, 0, 10}, m)
	require.EqualError(t, p.UnmarshalText([]byte("x/24")), `"x/24": want an address or a network such as 192.0.2.80, 2001:db8::80 or 192.0.2.0/24`)
	require.EqualError(t, e.UnmarshalText([]byte("x:80")), `"x:80": want an address such as 10.0.0.1:80, [2001:db8::1]:80 or 10.0.0.1`)
	require.EqualError(t, m.UnmarshalText([]byte("02:00:00:00:00:00:00:0a")), `"02:00:00:00:00:00:00:0a": want a MAC such as 02:00:00:00:00:01`)
}
