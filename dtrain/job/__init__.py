"""One job: checked, planned, started, followed, recorded, resumed."""
