package oncecmd_test

import (
	"testing"

	"github.com/semel-dev/semel/test/programtest"
)

func TestMain(m *testing.M) { programtest.Main(m) }
