package conf

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTransact(t *testing.T) {
	var log []string
	step := func(name string, do, undo error) Step {
		return Step{name, func() error { log = append(log, name); return do }, func() error { log = append(log, "-"+name); return undo }}
	}
	late, stuck := errors.New("too late"), errors.New("stuck")
	require.NoError(t, Transact(nil))
	require.NoError(t, Transact([]Step{step("a", nil, nil), step("b", nil, nil)}))
	require.Equal(t, "[a b]", fmt.Sprint(log))
	log = nil
	require.Equal(t, late, Transact([]Step{step("a", nil, nil), step("b", late, nil), step("c", nil, nil)}))
	require.Equal(t, "[a b -b -a]", fmt.Sprint(log))
	require.EqualError(t, Transact([]Step{step("a", nil, stuck), step("b", late, nil)}), "too late\nand then, taking a back: stuck")
}
